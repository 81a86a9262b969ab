"""What a file of timm does not record: heads, grids, biases and pixels are assumed or asked for."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers.timm_files import config_json, folder_of, slow_logits, state
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load, save_model
from vitkit.weights.model_card import card_of


def test_what_a_file_without_a_config_does_not_say_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Facebook's DeiT, DINO and MAE come so; their statistics are ImageNet's."""
    torch.save(state(width=128, positions=10), tmp_path / "vit.pth")
    card = card_of(load_model(tmp_path / "vit.pth", num_heads=2))
    assert [assumption.what for assumption in card.assumed] == ["pixel statistics", "resizing"]
    assert card.preprocessing == Preprocessing((12, 12), "shortest", 0.9, interpolation="bicubic")
    assert "does not say its pixel statistics; assumed: pixel mean 0.5 and std 0.5" in caplog.text
    assert "DINO" in caplog.text and "--image-mean" in caplog.text
    assert "does not say its resizing; assumed: the shortest side resized to 13 by bicubic" in caplog.text
    caplog.clear()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = load_model(tmp_path / "vit.pth", num_heads=2, image_mean=mean, image_std=std)
    assert (model.config.image_mean, model.config.image_std) == (mean, std)
    torch.testing.assert_close(model.pixel_mean.flatten(), 255 * torch.tensor(mean))
    assert [assumption.what for assumption in card_of(model).assumed] == ["resizing"]
    assert "pixel statistics" not in caplog.text
    assert load_model(tmp_path / "vit.pth", num_heads=2, image_mean=(0.4,)).config.image_mean == (0.4,) * 3
    with pytest.raises(VitkitError, match="one value per channel"):
        load_model(tmp_path / "vit.pth", num_heads=2, image_mean=(0.4, 0.5))


def test_what_was_assumed_travels_with_the_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(state(width=128, positions=10), tmp_path / "vit.pth")
    model = load_model(tmp_path / "vit.pth", num_heads=2)
    save_model(model, tmp_path / "ours")
    caplog.clear()
    assert card_of(load_model(tmp_path / "ours")).assumed == card_of(model).assumed
    assert "pixel statistics" in caplog.text


def test_without_a_config_heads_are_asked_for_and_arithmetic_is_said_to_be_assumed(tmp_path: Path) -> None:
    tensors = state(width=128, positions=10)
    torch.save(tensors, tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match="num_heads=2"):
        load_model(tmp_path / "vit.pth")
    model = load_model(tmp_path / "vit.pth", num_heads=2)
    assert model.config.image_size == (12, 12) and model.config.gelu == "erf"
    assert model.config.norm_eps == 1e-6 and model.config.image_mean == (0.5, 0.5, 0.5)
    assert "no config.json" in card_of(model).origin["notes"][0]


def test_a_grid_that_is_not_square_is_asked_for(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match=r"13 position embeddings.*image_size"):
        load_model(tmp_path / "vit.pth", num_heads=4)
    assert load_model(tmp_path / "vit.pth", num_heads=4, image_size=(12, 16)).config.grid == (3, 4)


@pytest.mark.parametrize(
    ("positions", "size", "inside"),
    [
        (9, (16, 8), True),  # 4 x 2 and the class token, or 3 x 3
        (9, (12, 12), False),
        (225, (56, 64), True),  # 14 x 16 and the class token, or 15 x 15
        (225, (60, 60), False),
        (17, (16, 16), True),  # 4 x 4 and the class token: nothing else is square
        (13, (12, 16), True),
        (12, (12, 16), False),
    ],
)
def test_a_grid_with_two_readings_is_asked_about_and_the_size_given_decides(
    positions: int, size: tuple[int, int], inside: bool, tmp_path: Path
) -> None:
    tensors = {name: 0.3 * tensor for name, tensor in state(positions=positions).items()}
    torch.save(tensors, tmp_path / "vit.pth")
    if positions != 17:
        with pytest.raises(VitkitError, match=r"image_size HEIGHT WIDTH"):
            load_model(tmp_path / "vit.pth", num_heads=4)
    loaded = load(tmp_path / "vit.pth", LoadOptions(num_heads=4, image_size=size))
    assert loaded.identity.config.image_size == size and not any(
        "embeddings resized" in n for n in loaded.notes
    )
    assert loaded.model.config.class_token_position == inside
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(
            loaded.model(images), slow_logits(tensors, images, {"architecture": "", "model_args": {}})
        )


def test_both_readings_of_a_grid_are_named(tmp_path: Path) -> None:
    torch.save(state(positions=225), tmp_path / "vit.pth")
    message = "a grid that is no square and 1 token before the patches, or a grid of 15x15 without a position"
    for size in (None, (32, 32)):  # a size that fits neither does not tell
        with pytest.raises(VitkitError, match=message):
            load_model(tmp_path / "vit.pth", num_heads=4, image_size=size)
    torch.save(state(positions=9, extra={"reg_token": (1, 4, 32)}), tmp_path / "vit.pth")
    message = (
        "a grid of 2x2 and 5 tokens before the patches, or a grid of 3x3 without a position for the 5 tokens"
    )
    with pytest.raises(VitkitError, match=message):
        load_model(tmp_path / "vit.pth", num_heads=4)
    for side, inside in ((8, True), (12, False)):
        config = load_model(tmp_path / "vit.pth", num_heads=4, image_size=side).config
        assert config.class_token_position == inside and config.register_tokens == 4


def test_a_rectangle_of_as_many_places_as_the_usual_square_is_resized_to(tmp_path: Path) -> None:
    torch.save(state(positions=17), tmp_path / "vit.pth")
    loaded = load(tmp_path / "vit.pth", LoadOptions(num_heads=4, image_size=(8, 32)))
    assert loaded.identity.config.image_size == (16, 16)
    assert any("resized from a grid of 4x4 to 2x8" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("architecture", "heads", "gelu"),
    [
        ("vit_tiny_patch16_224", 3, "erf"),
        ("vit_base_patch16_224.augreg_in21k", 12, "erf"),
        ("vit_base_patch16_gap_224", 16, "erf"),
        ("deit_small_patch16_224", 6, "erf"),
        ("vit_so400m_patch14_siglip_gap_224", 16, "erf"),
        ("vit_so400m_patch16_siglip_gap_256", 16, "tanh"),
        ("vit_large_patch16_siglip_512", 16, "tanh"),
    ],
)
def test_an_architecture_is_known_by_its_name(
    tmp_path: Path, architecture: str, heads: int, gelu: str
) -> None:
    config = config_json(architecture)
    del config["model_args"]["num_heads"]
    config["model_args"]["embed_dim"] = 48
    if "siglip" in architecture or "gap" in architecture:
        tensors = state(width=48, positions=12, extra={"cls_token": ()})
        config["model_args"]["global_pool"] = "avg"
    else:
        tensors = state(width=48)
    model = load_model(folder_of(tmp_path, tensors, config))
    assert (model.config.num_heads, model.config.gelu) == (heads, gelu)


def test_an_unknown_architecture_asks_for_its_heads(tmp_path: Path) -> None:
    config = config_json("vit_peculiar_patch4")
    del config["model_args"]["num_heads"]
    with pytest.raises(VitkitError, match=r"vit_peculiar_patch4.*num_heads"):
        load_model(folder_of(tmp_path, state(), config))
    model = load_model(tmp_path, num_heads=4)
    assert "vit_peculiar_patch4" in card_of(model).origin["notes"][0]


def test_a_layer_without_bias_has_a_bias_of_zeros(tmp_path: Path) -> None:
    tensors = state(extra={f"blocks.{i}.attn.qkv.bias": () for i in range(2)})
    model = load_model(folder_of(tmp_path, tensors, config_json(qkv_bias=False)))
    weights = model.state_dict()
    assert not weights["blocks.1.attention.qkv.bias"].any()
    assert torch.equal(weights["blocks.1.attention.qkv.weight"], tensors["blocks.1.attn.qkv.weight"])


def test_biases_are_those_that_the_config_says(tmp_path: Path) -> None:
    whole, without = state(), state(extra={f"blocks.{i}.attn.qkv.bias": () for i in range(2)})
    partial = state(extra={"blocks.0.attn.qkv.bias": ()})
    cases: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
        (without, {}, r"blocks\.0\.attn\.qkv\.bias: missing"),
        (partial, {}, r"blocks\.0\.attn\.qkv\.bias: missing"),
        (whole, {"qkv_bias": False}, r"blocks\.0\.attn\.qkv\.bias: unexpected"),
    ]
    for tensors, arguments, message in cases:
        with pytest.raises(VitkitError, match=message):
            load_model(folder_of(tmp_path, tensors, config_json(**arguments)))
    by_name = config_json("vit_base_patch16_224_miil")
    assert (
        not load_model(folder_of(tmp_path, without, by_name))
        .state_dict()["blocks.0.attention.qkv.bias"]
        .any()
    )


def test_biases_without_a_config_are_in_all_blocks_or_none(tmp_path: Path) -> None:
    said: dict[str, Any] = {"num_heads": 4, "image_size": (12, 16)}
    for i in range(2):
        torch.save(state(extra={f"blocks.{i}.attn.qkv.bias": ()}), tmp_path / "vit.pth")
        with pytest.raises(VitkitError, match=rf"blocks\.{i}\.attn\.qkv\.bias: missing"):
            load_model(tmp_path / "vit.pth", **said)
    torch.save(state(extra={f"blocks.{i}.attn.qkv.bias": () for i in range(2)}), tmp_path / "vit.pth")
    assert not load_model(tmp_path / "vit.pth", **said).state_dict()["blocks.1.attention.qkv.bias"].any()


def test_positions_are_missing_unless_the_config_says_that_there_are_none(tmp_path: Path) -> None:
    tensors = state(extra={"pos_embed": ()})
    with pytest.raises(VitkitError, match="pos_embed: missing"):
        load_model(folder_of(tmp_path, tensors, config_json()))
    for none in ("none", "", False):
        model = load_model(folder_of(tmp_path, tensors, config_json(pos_embed=none)))
        assert model.config.position == "none" and "notes" not in card_of(model).origin
    with pytest.raises(VitkitError, match="pos_embed: unexpected"):
        load_model(folder_of(tmp_path, state(), config_json(pos_embed="none")))
    with pytest.raises(VitkitError, match="pos_embed: expected learn or none"):
        load_model(folder_of(tmp_path, state(), config_json(pos_embed="rope")))
    (tmp_path / "config.json").unlink()
    save_file(tensors, tmp_path / "model.safetensors")
    model = load_model(tmp_path, num_heads=4, image_size=(12, 16))
    assert model.config.position == "none"
    assert "no pos_embed" in card_of(model).origin["notes"][1]


def test_a_file_that_two_architectures_fit_is_refused_without_its_config(tmp_path: Path) -> None:
    """timm's post-norm model has these tensors; one part more, and they are an ordinary model's alone."""
    absent: dict[str, tuple[int, ...]] = {"cls_token": (), "norm.weight": (), "norm.bias": ()}
    absent |= {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}
    norm = {"fc_norm.weight": (32,), "fc_norm.bias": (32,)}
    ordinary: list[dict[str, tuple[int, ...]]] = [
        {"norm.weight": (32,), "norm.bias": (32,), "fc_norm.weight": (), "fc_norm.bias": ()},
        {"cls_token": (1, 1, 32), "pos_embed": (1, 13, 32)},
        {f"blocks.{i}.ls{part}.gamma": (32,) for i in range(2) for part in (1, 2)},
        {f"blocks.{i}.attn.qkv.bias": (96,) for i in range(2)},
    ]
    options = LoadOptions(num_heads=4, image_size=(12, 16))
    for number, more in enumerate(ordinary):
        torch.save(state(positions=12, extra=absent | norm | more), tmp_path / f"{number}.pth")
        assert load(tmp_path / f"{number}.pth", options).model.config.pool in ("mean", "token")
    tensors = state(positions=12, extra=absent | norm)
    torch.save(tensors, tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match=r"two models .*rpn_224.* put the config\.json"):
        load(tmp_path / "vit.pth", options)
    config = config_json(global_pool="avg", class_token=False, qkv_bias=False)
    assert load(folder_of(tmp_path, tensors, config)).model.config.norm_after_pooling
