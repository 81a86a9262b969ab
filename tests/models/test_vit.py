"""The model against the authors' numbers, its dropout and precision, and fast paths against slow ones."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.fixture_files import load_fixture, write_npz
from tests.helpers.random_models import TINY, model_with_random_head
from tests.helpers.refusals import refused
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import BatchRows, autocast
from vitkit.models.parts import Attention, AttentionPool, Block, ConvStem, Dropout, drop_path
from vitkit.models.vit import ViT
from vitkit.models.zoo import vit_config


@pytest.mark.parametrize(
    "name", ["e_vit_token_interp_24", "e_vit_token_interp_28", "e_rep_to_norep_head7", "e_rep_kept_head7"]
)
def test_fine_tuning_rules_are_those_of_the_original(name: str, tmp_path: Path) -> None:
    """Other image size: positions interpolated. Other classes: no tanh layer, a new head."""
    description, parameters, arrays = load_fixture(name)
    dropped = not arrays["has_pre_logits_after"] and description["pretrain_cfg"]["representation_size"]
    path = write_npz(tmp_path / "weights.npz", parameters)
    model = load_model(path, num_classes=7 if dropped else None, image_size=description["image"][0])
    refused("cannot be kept for 3", load_model, path, num_classes=3, head="keep")
    np.testing.assert_allclose(
        model.state_dict()["positions.0.embedding"].numpy(), arrays["pos_embedding_new"], rtol=0, atol=1e-6
    )
    if dropped:
        state = model.state_dict()
        assert "pre_logits.weight" not in state
        assert not state["head.weight"].any() and not state["head.bias"].any()
    # The fixture's new head is random instead of zero, so that its logits say something.
    kernel = torch.from_numpy(arrays["new_head_kernel"].T.copy())
    model.head.weight, model.head.bias = (
        torch.nn.Parameter(kernel),
        torch.nn.Parameter(torch.from_numpy(arrays["new_head_bias"])),
    )
    with torch.inference_mode():
        logits = model(torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2))
    np.testing.assert_allclose(logits.numpy(), arrays["logits"], rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("mean", "std"), [((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)
def test_bytes_are_normalised_and_floats_are_not(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    model = model_with_random_head(dataclasses.replace(TINY, image_mean=mean, image_std=std))
    pixels = torch.randint(0, 256, (3, 3, 12, 16), dtype=torch.uint8)
    centre, scale = (torch.tensor(numbers).view(3, 1, 1) for numbers in (mean, std))
    with torch.inference_mode():
        floats = model((pixels / 255 - centre) / scale)
        torch.testing.assert_close(model(pixels), floats, rtol=1e-4, atol=1e-4)
        assert mean != std or torch.equal(model(pixels), model((pixels.float() - 127.5) / 127.5))


def test_the_stem_is_a_convolution_that_crops_right_and_bottom() -> None:
    config = dataclasses.replace(TINY, image_size=(15, 17))
    model = model_with_random_head(config)
    images = torch.randn(2, 3, 15, 17)
    expected = F.conv2d(images, model.stem.weight, model.stem.bias, stride=(4, 4))  # type: ignore[arg-type]
    assert expected.shape[-2:] == config.grid
    torch.testing.assert_close(model.stem(images), expected.flatten(2).transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_taps_name_every_intermediate_and_weights_only_when_asked() -> None:
    model = model_with_random_head(TINY)
    taps: dict[str, torch.Tensor] = {}
    images = torch.randn(2, 3, 12, 16)
    with torch.inference_mode():
        logits = model(images, taps=taps)
    layers = {f"block{i:02d}/{part}" for i in range(2) for part in ("attention", "+attention", "mlp", "+mlp")}
    assert set(taps) == layers | {"stem", "embedded", "encoded", "pooled", "pre_logits", "logits"}
    assert torch.equal(taps["logits"], logits)
    assert torch.equal(taps["block01/+attention"], taps["block00/+mlp"] + taps["block01/attention"])
    model(images, taps=taps, attention_weights=[1])
    assert "block00/attention_weights" not in taps
    weights = taps["block01/attention_weights"]
    assert weights.shape == (2, 3, 13, 13)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 13), rtol=0, atol=1e-5)


def test_dropout_stands_where_the_paper_names_it() -> None:
    """After the positions and every dense layer but qkv: ones come out as zeros and doubles there."""
    model = model_with_random_head(dataclasses.replace(TINY, dropout=0.5)).train()
    taps: dict[str, torch.Tensor] = {}
    model(torch.randn(8, 3, 12, 16), taps=taps)
    for name in ("embedded", "block00/attention", "block00/mlp"):
        assert 0.4 < (taps[name] == 0).float().mean() < 0.6, name
    for name in ("stem", "encoded", "pooled"):
        assert (taps[name] == 0).float().mean() < 0.01, name


def test_dropout_keeps_the_mean_and_draws_every_number_by_itself() -> None:
    """Within five standard errors: all of them, each place over images, and pairs of neighbours."""
    drop = Dropout(0.3).train()
    torch.manual_seed(1)
    x = drop(torch.ones(400, 50, 40))
    stays = (x != 0).double()
    assert torch.equal(x[x != 0].unique(), torch.tensor([1 / (1 - 0.3)]))
    assert abs(stays.mean() - 0.7) < 5 * (0.21 / x.numel()) ** 0.5
    assert ((stays.mean(0) - 0.7).abs() < 5 * (0.21 / 400) ** 0.5).all()
    centred = stays - 0.7
    for axis in range(3):
        for step in (1, 2, 7, 32):
            pairs = centred.narrow(axis, 0, x.shape[axis] - step) * centred.narrow(
                axis, step, x.shape[axis] - step
            )
            assert abs(pairs.mean()) < 5 * 0.21 / pairs.numel() ** 0.5
    assert drop(torch.ones(0, 3)).shape == (0, 3)
    assert torch.equal(drop.eval()(x), x) and torch.equal(Dropout(0.0).train()(x), x)


def test_dropout_does_not_depend_on_how_a_batch_is_divided() -> None:
    x, drop = torch.randn(5, 3, 8), Dropout(0.5).train()
    torch.manual_seed(3)
    whole = drop(x)
    for start, stop in ((0, 2), (2, 5)):
        drop.batch_rows = BatchRows(start, stop, 5, seed=start)
        torch.manual_seed(3)
        assert torch.equal(drop(x[start:stop]), whole[start:stop])


def test_weights_are_drawn_as_the_original_draws_them() -> None:
    config = vit_config("ViT-S/16", num_classes=10)
    model = ViT(dataclasses.replace(config, representation_size=64))
    block = model.blocks[0]
    assert isinstance(block, Block)
    width, mlp = config.width, config.mlp_dim

    def spread(tensor: torch.Tensor) -> tuple[float, float]:
        return tensor.std().item(), tensor.abs().max().item()

    std, largest = spread(model.stem.weight)  # type: ignore[arg-type]
    assert std == pytest.approx((16 * 16 * 3) ** -0.5, rel=0.02)
    assert largest <= 2 / 0.8796 * (16 * 16 * 3) ** -0.5 * 1.001
    for weight, bound in (
        (block.attention.qkv.weight, (6 / (2 * width)) ** 0.5),
        (block.attention.out.weight, (6 / (2 * width)) ** 0.5),
        (block.mlp.fc1.weight, (6 / (width + mlp)) ** 0.5),
    ):
        std, largest = spread(weight)
        assert largest <= bound and std == pytest.approx(bound / 3**0.5, rel=0.02)
    assert spread(block.mlp.fc1.bias)[0] == pytest.approx(1e-6, rel=0.1)
    assert spread(model.state_dict()["positions.0.embedding"])[0] == pytest.approx(0.02, rel=0.02)
    assert not block.attention.qkv.bias.any() and not model.get_parameter("head.weight").any()
    assert model.class_token is not None and not model.class_token.any()
    assert not model.get_parameter("head.bias").any()
    assert {block.norm1.eps, block.norm2.eps, model.norm.eps} == {1e-6}


def test_images_that_do_not_fit_and_layers_that_are_not_there_are_refused() -> None:
    model, images = ViT(TINY), torch.zeros(1, 3, 12, 16)
    for others, message in (
        (torch.zeros(1, 3, 16, 16), r"\(B, 3, 12, 16\), found \(1, 3, 16, 16\)"),
        (torch.zeros(3, 12, 16), r"found \(3, 12, 16\)"),
        (torch.zeros(1, 1, 12, 16), "found"),
        (torch.zeros(1, 3, 12, 16, dtype=torch.int64), "uint8"),
    ):
        refused(message, model, others)
    refused("This model takes images of shape", model.features, torch.zeros(1, 2, 20, 8), any_size=True)
    refused("0 to 1", model, images, taps={}, attention_weights=[2])
    refused("taps", model, images, attention_weights=True)
    refused("numbered 0 to 1", model.feature_maps, images, [2])


@pytest.mark.parametrize("pool", [False, True])
def test_attention_dropout_is_that_of_the_explicit_path(pool: bool) -> None:
    """Over many draws, the fused path has the mean of no dropout and the spread of dropped weights."""
    torch.manual_seed(0)
    share = 0.4
    config = dataclasses.replace(TINY, attention_dropout=share, pool="map" if pool else "token")
    model = build_model(config)
    assert isinstance(model, ViT) and isinstance(model.blocks[0], Block)
    module = model.pooling if pool else model.blocks[0].attention
    module.init_weights(None)
    draws = torch.randn(1, 9, config.width).expand(6000, -1, -1)
    with torch.no_grad():
        if isinstance(module, AttentionPool):  # what follows the attention is not linear
            module.mlp.fc2.weight.zero_()
            module.mlp.fc2.bias.zero_()
        without = module.eval()(draws[:1])
        dropped = module.train()(draws)
    spread = dropped.std(0)
    assert spread.mean() > 0.02
    assert ((dropped.mean(0) - without[0]).abs() < 6 * spread / 6000**0.5 + 1e-6).all()
    if isinstance(module, Attention):
        with torch.no_grad():
            explicit = module(draws, {}, "weights")
        torch.testing.assert_close(spread, explicit.std(0), rtol=0.1, atol=1e-3)


# Stochastic depth

DEEP = dataclasses.replace(TINY, depth=5, drop_path=0.4)


def test_rates_rise_evenly_from_none_to_that_of_the_last_block() -> None:
    model = model_with_random_head(DEEP)
    assert [block.drop_path for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    (only,) = model_with_random_head(dataclasses.replace(DEEP, depth=1)).blocks
    assert only.drop_path == 0


def test_an_image_keeps_a_branch_whole_or_not_at_all() -> None:
    torch.manual_seed(0)
    dropped = drop_path(torch.ones(4000, 3, 2), 0.4)
    by_image = dropped.flatten(1)
    assert torch.equal(by_image, by_image[:, :1].expand(-1, 6))
    assert set(by_image[:, 0].tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)  # five standard deviations of the mean


def test_both_branches_are_dropped() -> None:
    block = model_with_random_head(dataclasses.replace(DEEP, drop_path=0.9)).blocks[-1].train()
    taps: dict[str, torch.Tensor] = {}
    tokens = torch.randn(200, 4, TINY.width)
    torch.manual_seed(0)
    block(tokens, taps, "b")
    for name in ("b/attention", "b/mlp"):
        zero = (taps[name].flatten(1) == 0).all(1)
        assert 150 < zero.sum() < 198


# The precision that a model computes in


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_computes_in_bfloat16_if_it_can(supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)
    chosen = []

    def context(device: str, dtype: torch.dtype, enabled: bool) -> None:
        chosen.append((device, dtype, enabled))

    monkeypatch.setattr(torch, "autocast", context)
    autocast(torch.device("cuda", 0), "auto")
    autocast(torch.device("cuda", 0), "float32")
    assert chosen == [("cuda", torch.bfloat16, supported), ("cuda", torch.bfloat16, False)]


# The convolutional stem

SMALL = vit_config("ViT-32x2x2/4-conv", num_classes=5, image_size=(18, 23))


def stem_of(config: ViTConfig, seed: int = 0) -> ConvStem:
    stem = build_model(config, torch.Generator().manual_seed(seed)).stem
    assert isinstance(stem, ConvStem)
    return stem


def test_a_name_chooses_the_channels_that_double_up_to_the_width() -> None:
    assert SMALL.stem_channels == (16, 32)
    assert vit_config("ViT-Ti/16-conv").stem_channels == (24, 48, 96, 192)  # ViT-C of 1 and 4 GF
    assert vit_config("ViT-S/16-conv-gap").stem_channels == (48, 96, 192, 384)
    assert vit_config("ViT-S/16").stem_channels == ()


@pytest.mark.parametrize(
    "name", ["ViT-B/14-conv", "ViT-20x2x2/4-conv", "ViT-32x2x2/1-conv", "R50+ViT-B/16-conv"]
)
def test_a_name_without_such_channels_is_explained(name: str) -> None:
    refused("stem", vit_config, name, 5, 64)
    refused("stem", ViT, SMALL)  # it asks for the part


def test_it_makes_a_patch_of_each_position_and_sees_no_pixel_beyond_them() -> None:
    stem = stem_of(SMALL)
    images = torch.randn(2, 3, 18, 23)
    patches = stem(images)
    assert patches.shape == (2, 4 * 5, 32)
    images[:, :, 16:], images[:, :, :, 20:] = 9.0, 9.0
    assert torch.equal(stem(images), patches)


@pytest.mark.parametrize(
    ("channels", "strides", "steps"),
    [((8, 16, 24), (), (1, 2, 2)), ((8, 16, 16, 24), (2, 1, 2, 1), (2, 1, 2, 1))],
    ids=["strides at the end", "given strides"],
)
def test_it_is_convolutions_norms_and_relus_then_a_projection(
    channels: tuple[int, ...], strides: tuple[int, ...], steps: tuple[int, ...]
) -> None:
    config = dataclasses.replace(SMALL, stem_channels=channels, stem_strides=strides, image_size=(16, 16))
    stem = stem_of(config)
    x = images = torch.randn(2, 3, 16, 16)
    for number, stride in enumerate(steps):
        x = F.conv2d(x, stem.get_parameter(f"convolutions.{number}.weight"), stride=stride, padding=1)
        x = F.relu(F.group_norm(x, x.shape[1] // 8))
    weight, bias = (stem.get_parameter(f"projection.{part}") for part in ("weight", "bias"))
    expected = torch.einsum("bchw,dc->bhwd", x, weight[:, :, 0, 0]).reshape(2, 16, 32) + bias
    torch.testing.assert_close(stem(images), expected)


def test_an_image_does_not_depend_on_the_others_of_its_batch() -> None:
    stem, images = stem_of(SMALL).train(), torch.randn(4, 3, 16, 20)
    torch.testing.assert_close(stem(images)[:1], stem(images[:1]))
