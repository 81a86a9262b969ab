"""The grammar of names."""

import pytest

from vitkit.errors import VitkitError
from vitkit.models.zoo import NAMES, list_models, vit_config


def test_names_of_the_paper_and_of_the_files_are_the_same() -> None:
    assert vit_config("ViT-B/16") == vit_config("ViT-B_16")
    assert vit_config("ViT-S/32-gap") == vit_config("ViT-S_32-gap-norep")


def test_sizes_of_table_1() -> None:
    for name, layers, width, mlp, heads in (
        ("ViT-B/16", 12, 768, 3072, 12),
        ("ViT-L/16", 24, 1024, 4096, 16),
        ("ViT-H/14", 32, 1280, 5120, 16),
    ):
        config = vit_config(name)
        assert (config.depth, config.width, config.mlp_dim, config.num_heads) == (layers, width, mlp, heads)


def test_any_size_any_patch() -> None:
    config = vit_config("ViT-96x6x3/8x4", num_classes=7, image_size=(24, 32))
    assert (config.width, config.depth, config.num_heads, config.mlp_dim) == (96, 6, 3, 384)
    assert (config.patch_size, config.grid, config.num_classes) == ((8, 4), (3, 8), 7)
    assert vit_config("ViT-Ti/16-gap").pool == "mean"


def test_every_listed_name_can_be_made() -> None:
    assert list_models() == sorted(NAMES)
    for name in list_models():
        vit_config(name)
    assert list_models("ViT-L*") == ["ViT-L/16", "ViT-L/32"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ViT-B/61x", "ViT-B/16"),
        ("vit_base_patch16_224", "Names look like"),
        ("ViT-X/16", "Did you mean 'ViT-.*/16'"),
        ("ViT-96x6/4", "96x6x3"),
    ],
)
def test_a_wrong_name_is_told_the_nearest(name: str, words: str) -> None:
    with pytest.raises(VitkitError, match=words):
        vit_config(name)


def test_heads_that_do_not_divide_the_width() -> None:
    with pytest.raises(VitkitError, match="cannot be shared among 7 heads"):
        vit_config("ViT-96x6x7/4")
