"""timm's files without timm: names and shapes by hand, every variant there and back, refusals in words."""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.config.vit_config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights import LoadOptions, load, save_model
from vitkit.weights.formats.timm.write import _ratio
from vitkit.weights.model_card import ModelCard, card_of, preprocessing_of

TINY = ViTConfig(
    image_size=(12, 16),
    patch_size=(4, 4),
    width=32,
    depth=2,
    num_heads=4,
    mlp_dim=44,
    num_classes=5,
    gelu="erf",
)
SWIGLU = {"weight": (88, 32), "bias": (88,)}
TIMM_RESNET = {"norm_eps": 1e-5, "standardization": "variance", "standardization_eps": 1e-8}


def random_model(config: ModelConfig) -> ImageModel:
    model = build_model(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def state(
    width: int = 32, positions: int = 13, extra: Mapping[str, tuple[int, ...]] | None = None
) -> dict[str, Tensor]:
    """A ViT of two blocks for 12x16 images in timm's names; `extra` adds some, an empty shape removes one."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, positions, width),
        "patch_embed.proj.weight": (width, 3, 4, 4),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (5, width),
        "head.bias": (5,),
    }
    for i in range(2):
        for name, out, into in (
            ("attn.qkv", 3 * width, width),
            ("attn.proj", width, width),
            ("mlp.fc1", 44, width),
            ("mlp.fc2", width, 44),
        ):
            shapes[f"blocks.{i}.{name}.weight"] = (out, into)
            shapes[f"blocks.{i}.{name}.bias"] = (out,)
        for name in ("norm1", "norm2"):
            shapes[f"blocks.{i}.{name}.weight"] = (width,)
            shapes[f"blocks.{i}.{name}.bias"] = (width,)
    shapes |= extra or {}
    return {name: torch.randn(shape) for name, shape in shapes.items() if shape}


def config_json(architecture: str = "vit_tiny_patch16_224", **arguments: Any) -> dict[str, Any]:
    return {
        "architecture": architecture,
        "num_classes": 5,
        "model_args": {"img_size": [12, 16], "embed_dim": TINY.width, "num_heads": 4, **arguments},
        "pretrained_cfg": {
            "input_size": [3, 12, 16],
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
            "interpolation": "bilinear",
            "crop_pct": 0.9,
            "crop_mode": "center",
        },
    }


def folder_of(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> Path:
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


VARIANTS: dict[str, ModelConfig] = {
    "token": TINY,
    "tanh GELU": replace(TINY, gelu="tanh"),
    "gap": replace(TINY, pool="mean"),
    "map": replace(TINY, pool="map"),
    "map with registers": replace(TINY, pool="map", register_tokens=2),
    "every token": replace(TINY, pool="none"),
    "registers with positions": replace(TINY, register_tokens=4),
    "registers without positions": replace(TINY, register_tokens=4, class_token_position=False),
    "gap with registers": replace(TINY, pool="mean", register_tokens=4, class_token_position=False),
    "no positions": replace(TINY, position="none"),
    "no head": replace(TINY, num_classes=0),
    "one channel": replace(TINY, in_channels=1, image_mean=(0.1,), image_std=(0.3,)),
    "patches not square": replace(TINY, patch_size=(4, 2)),
    "an awkward MLP": replace(TINY, width=36, mlp_dim=97),
    "dropout": replace(TINY, dropout=0.1, attention_dropout=0.2),
    "hybrid, root alone": replace(
        TINY,
        image_size=(32, 64),
        patch_size=(8, 8),
        backbone=BackboneConfig((), **TIMM_RESNET),  # type: ignore[arg-type]
    ),
    "hybrid": replace(
        TINY,
        image_size=(64, 96),
        patch_size=(1, 1),
        backbone=BackboneConfig((2, 2, 2, 2), **TIMM_RESNET),  # type: ignore[arg-type]
    ),
    "BiT": ResNetConfig((32, 48), (3, 4, 6, 3), num_classes=5, standardization_eps=1e-8),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_survives_the_way_there_and_back(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(VARIANTS[name])
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(model, tmp_path / "theirs", format="timm")
    assert "cannot say" not in caplog.text
    again = load_model(tmp_path / "theirs")
    if name == "no positions":  # nothing is before the patches that could have or lack a position
        again.config = replace(again.config, class_token_position=True)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_names_and_shapes_are_those_of_timm(tmp_path: Path) -> None:
    save_model(random_model(TINY), tmp_path, format="timm")
    written = {name: tensor.shape for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert written == {name: tensor.shape for name, tensor in state().items()}


def test_names_of_hybrids_and_bits_are_those_of_timm(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["hybrid"]), tmp_path, format="timm")
    hybrid = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    unit = "patch_embed.backbone.stages.1.blocks.0"
    assert hybrid["patch_embed.backbone.stem.conv.weight"] == (64, 3, 7, 7)
    assert hybrid["patch_embed.backbone.stem.norm.bias"] == (64,)
    assert hybrid[f"{unit}.conv2.weight"] == (128, 128, 3, 3)
    assert hybrid[f"{unit}.downsample.conv.weight"] == (512, 256, 1, 1)
    assert hybrid[f"{unit}.downsample.norm.weight"] == (512,)
    assert hybrid["patch_embed.proj.weight"] == (32, 2048, 1, 1)
    save_model(random_model(VARIANTS["BiT"]), tmp_path, format="timm")
    bit = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert bit["stem.conv.weight"] == (64, 3, 7, 7)
    assert bit["stages.3.blocks.2.norm3.weight"] == (512,)
    assert bit["head.fc.weight"] == (5, 2048, 1, 1)
    assert "stages.0.blocks.0.downsample.norm.weight" not in bit


def test_what_config_json_says_is_taken_over(tmp_path: Path) -> None:
    config = {**config_json(), "label_names": ["a", "b", "c", "d", "e"]}
    model = load_model(folder_of(tmp_path, state(), config))
    assert model.config == replace(TINY, image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))
    assert model.card.class_names == ("a", "b", "c", "d", "e")
    assert card_of(model).origin["architecture"] == "vit_tiny_patch16_224"
    preprocessing = preprocessing_of(model)
    assert preprocessing == Preprocessing((12, 16), "shortest", 0.9)
    assert not card_of(model).assumed


@pytest.mark.parametrize(
    "rule",
    [
        Preprocessing((224, 224)),
        Preprocessing((224, 224), interpolation="bicubic"),
        Preprocessing((224, 224), "shortest", 0.9, interpolation="bicubic"),
        Preprocessing((224, 224), "shortest", 0.8777, interpolation="lanczos"),
        Preprocessing((224, 224), "shortest", 1.2),
        Preprocessing((224, 224), "squash", 0.95, interpolation="nearest"),
        Preprocessing((224, 224), "longest", 0.9, interpolation="bicubic", border=(128, 128, 128)),
    ],
    ids=lambda rule: f"{rule.resize} {rule.crop_fraction} {rule.interpolation}",
)
def test_preprocessing_survives_the_way_there_and_back(
    tmp_path: Path, rule: Preprocessing, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(replace(TINY, image_size=(224, 224), patch_size=(56, 56)))
    model.card = ModelCard(preprocessing=rule, class_names=("a", "b", "c", "d", "e"))
    card = card_of(load_model(save_model(model, tmp_path, format="timm")))
    assert card.class_names == model.card.class_names
    assert card.preprocessing == rule
    assert not caplog.text


@pytest.mark.parametrize("fraction", [0.875, 0.9, 1.0, 0.77])
def test_the_nearest_of_timm_is_written_and_what_is_lost_is_said(
    tmp_path: Path, fraction: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(replace(TINY, image_size=(224, 224), patch_size=(56, 56)))
    rule = Preprocessing((224, 224), "crop", fraction, antialias=False)
    model.card = ModelCard(preprocessing=rule)
    card = card_of(load_model(save_model(model, tmp_path, format="timm")))
    again = card.preprocessing
    assert again is not None
    assert (again.resize, again.resized(0)) == ("shortest", round(224 / fraction))
    assert "resize: 'crop' becomes 'shortest'" in caplog.text
    assert "antialias: False becomes True" in caplog.text


def test_what_a_file_without_a_config_does_not_say_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Facebook's DeiT, DINO and MAE come so; their statistics are ImageNet's."""
    torch.save(state(width=128, positions=10), tmp_path / "vit.pth")
    card = card_of(load_model(tmp_path / "vit.pth", num_heads=2))
    assert [one.what for one in card.assumed] == ["pixel statistics", "resizing"]
    assert card.preprocessing == Preprocessing((12, 12), "shortest", 0.9, interpolation="bicubic")
    assert "does not say its pixel statistics; assumed: pixel mean 0.5 and std 0.5" in caplog.text
    assert "DINO" in caplog.text and "--image-mean" in caplog.text
    assert "does not say its resizing; assumed: the shortest side resized to 13 by bicubic" in caplog.text
    caplog.clear()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = load_model(tmp_path / "vit.pth", num_heads=2, image_mean=mean, image_std=std)
    assert (model.config.image_mean, model.config.image_std) == (mean, std)
    torch.testing.assert_close(model.pixel_mean.flatten(), 255 * torch.tensor(mean))
    assert [one.what for one in card_of(model).assumed] == ["resizing"]
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


def timm_logits(tensors: dict[str, Tensor], images: Tensor, inside: bool) -> Tensor:
    """timm's ViT in a few lines, of patches of 4 and 4 heads; `inside`: the class token has a position."""
    width = tensors["cls_token"].shape[-1]
    x = F.conv2d(images, tensors["patch_embed.proj.weight"], tensors["patch_embed.proj.bias"], stride=4)
    x = x.flatten(2).mT
    token = tensors["cls_token"].expand(len(x), -1, -1)
    positions = tensors["pos_embed"]
    x = torch.cat([token, x], 1) + positions if inside else torch.cat([token, x + positions], 1)

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (width,), tensors[f"{name}.weight"], tensors[f"{name}.bias"], 1e-6)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    for i in range(2):
        block = f"blocks.{i}"
        qkv = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        shape = (*x.shape[:2], 4, width // 4)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in qkv.chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(mixed, f"{block}.attn.proj")
        hidden = F.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + linear(hidden, f"{block}.mlp.fc2")
    return linear(norm(x, "norm")[:, 0], "head")


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
        with pytest.raises(VitkitError, match=r"--image-size HEIGHT WIDTH"):
            load_model(tmp_path / "vit.pth", num_heads=4)
    loaded = load(tmp_path / "vit.pth", LoadOptions(num_heads=4, image_size=size))
    assert loaded.identity.config.image_size == size and not any(
        "embeddings resized" in n for n in loaded.notes
    )
    assert loaded.model.config.class_token_position == inside
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(loaded.model(images), timm_logits(tensors, images, inside))


def test_both_readings_of_a_grid_are_named(tmp_path: Path) -> None:
    torch.save(state(positions=225), tmp_path / "vit.pth")
    words = "a grid that is no square and 1 token before the patches, or a grid of 15x15 without a position"
    for size in (None, (32, 32)):  # a size that fits neither does not tell
        with pytest.raises(VitkitError, match=words):
            load_model(tmp_path / "vit.pth", num_heads=4, image_size=size)
    torch.save(state(positions=9, extra={"reg_token": (1, 4, 32)}), tmp_path / "vit.pth")
    words = (
        "a grid of 2x2 and 5 tokens before the patches, or a grid of 3x3 without a position for the 5 tokens"
    )
    with pytest.raises(VitkitError, match=words):
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


def test_old_files_with_a_tanh_layer_keep_it(tmp_path: Path) -> None:
    extra = {"pre_logits.fc.weight": (7, 32), "pre_logits.fc.bias": (7,), "head.weight": (5, 7)}
    tensors = state(extra=extra)
    model = load_model(folder_of(tmp_path, tensors, config_json()))
    assert model.config.representation_size == 7
    assert torch.equal(model.state_dict()["pre_logits.weight"], tensors["pre_logits.fc.weight"])


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
    for tensors, arguments, words in cases:
        with pytest.raises(VitkitError, match=words):
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


def changed(config: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """`config` with another value at a place like "model_args.img_size"."""
    outer, _, key = place.rpartition(".")
    return {**config, **({outer: {**config[outer], key: value}} if outer else {key: value})}


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("architecture", ["vit_tiny_patch16_224"]),
        ("global_pool", ["token"]),
        ("model_args", ["img_size"]),
        ("model_args", "img_size"),
        ("model_args.img_size", 1.5),
        ("model_args.img_size", ["a", "b"]),
        ("model_args.img_size", [12]),
        ("model_args.img_size", 10**30),
        ("model_args.num_heads", "x"),
        ("model_args.num_heads", []),
        ("model_args.num_heads", -4),
        ("model_args.act_layer", ["gelu"]),
        ("model_args.norm_layer", ["layernorm"]),
        ("model_args.proj_drop_rate", "x"),
        ("model_args.proj_drop_rate", 10**400),
        ("model_args.attn_drop_rate", "x"),
        ("model_args.global_pool", ["token"]),
        ("model_args.pos_embed", ["learn"]),
        ("model_args.qkv_bias", "yes"),
        ("pretrained_cfg", "default"),
        ("pretrained_cfg", [1]),
        ("pretrained_cfg.input_size", "x"),
        ("pretrained_cfg.mean", 0.5),
        ("pretrained_cfg.mean", ["a", "b", "c"]),
        ("pretrained_cfg.std", [0.5, None, 0.5]),
        ("pretrained_cfg.std", [0.5, float("nan"), 0.5]),
        ("pretrained_cfg.crop_pct", "x"),
        ("pretrained_cfg.crop_pct", -1),
        ("pretrained_cfg.crop_pct", 1e-320),
        ("pretrained_cfg.crop_mode", ["center"]),
        ("pretrained_cfg.crop_mode", "middle"),
        ("pretrained_cfg.interpolation", "cubic"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_settings_of_another_type_are_refused_by_name(tmp_path: Path, place: str, value: Any) -> None:
    key = place.rpartition(".")[2]
    words = key if value == -4 else rf"config\.json: (.*: )?{key}: "
    with pytest.raises(VitkitError, match=words):
        load_model(folder_of(tmp_path, state(), changed(config_json(), place, value)))


def test_null_in_the_settings_is_the_same_as_absent(tmp_path: Path) -> None:
    config = config_json(act_layer=None, global_pool=None, proj_drop_rate=None, pos_embed=None, img_size=None)
    config["pretrained_cfg"] |= {"mean": None, "std": None, "crop_pct": None, "tag": None}
    assert load_model(folder_of(tmp_path, state(), config)).config.image_size == (12, 16)
    with pytest.raises(VitkitError, match="do not belong together"):
        load_model(folder_of(tmp_path, state(), changed(config, "model_args.embed_dim", None)))
    config = changed(changed(config, "model_args.num_heads", None), "architecture", "vit_peculiar_patch4")
    with pytest.raises(VitkitError, match="give num_heads"):
        load_model(folder_of(tmp_path, state(), config))


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("patch_embed.proj.weight", (32, 48)),
        ("patch_embed.proj.weight", (32, 3, 0, 4)),
        ("pos_embed", (32,)),
        ("pos_embed", None),
        ("reg_token", (32,)),
        ("blocks.0.mlp.fc1.weight", None),
        ("blocks.1.attn.qkv.weight", None),
        ("head.weight", None),
        ("head.weight", (0, 32)),
        ("pre_logits.fc.bias", None),
    ],
)
def test_misshapen_tensors_are_named(tmp_path: Path, key: str, shape: tuple[int, ...] | None) -> None:
    tensors = state(extra={f"blocks.{i}.attn.qkv.bias": () for i in range(2)})
    tensors[key] = torch.zeros(shape or ())
    with pytest.raises(VitkitError, match=rf"{key}: expected an array of \d axes"):
        load_model(folder_of(tmp_path, tensors, config_json(qkv_bias=False)))


@pytest.mark.parametrize(
    ("key", "shape", "words"),
    [
        ("stem.conv.weight", (64,), "4 axes"),
        ("head.fc.weight", (5, 2048), "4 axes"),
        ("head.fc.weight", (5, 2048, 2, 1), "1x1 pixels"),
    ],
)
def test_misshapen_tensors_of_bit_are_named(
    tmp_path: Path, key: str, shape: tuple[int, ...], words: str
) -> None:
    save_model(random_model(VARIANTS["BiT"]), tmp_path, format="timm")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, key: torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(VitkitError, match=f"{key}: .*{words}"):
        load_model(tmp_path)


def test_the_query_of_attention_pooling_stands_before_keys_and_values(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["map"]), tmp_path, format="timm")
    written = load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    joined = model.state_dict()["pooling.attention.qkv.weight"]
    assert torch.equal(written["attn_pool.q.weight"], joined[:32])
    assert torch.equal(written["attn_pool.kv.weight"], joined[32:])


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"dist_token": (1, 1, 32)}, "distillation token"),
        ({"blocks.1.ls1.gamma": (32,)}, r"blocks\.1\.ls1\.gamma: unexpected"),
        ({"blocks.0.ls1.gamma": (32,)}, r"blocks\.0\.ls2\.gamma: missing"),
        ({"blocks.1.gamma_2": (32,)}, "layer scale under the names of BEiT"),
        ({"blocks.0.attn.q_norm.weight": (8,)}, "qk_norm"),
        ({"norm_pre.weight": (32,)}, r"norm_pre\.bias: missing"),
        ({"fc_norm.weight": (32,)}, r"fc_norm\.bias: missing"),
        ({"norm.weight": (), "norm.bias": ()}, "no final norm"),
        ({f"blocks.0.mlp.fc1.{part}": shape for part, shape in SWIGLU.items()}, "SwiGLU"),
        ({"blocks.0.mystery.weight": (3,)}, r"blocks\.0\.mystery\.weight: unexpected"),
        ({"blocks.1.norm2.bias": ()}, r"blocks\.1\.norm2\.bias: missing"),
        ({"patch_embed.backbone.0.conv.weight": (8, 3, 3, 3)}, "no ResNet with GroupNorm"),
    ],
)
def test_parts_that_we_have_not_are_named(
    tmp_path: Path, extra: dict[str, tuple[int, ...]], words: str
) -> None:
    with pytest.raises(VitkitError, match=words):
        load_model(folder_of(tmp_path, state(extra=extra), config_json()))


@pytest.mark.parametrize(
    ("architecture", "arguments", "words"),
    [
        ("vit_base_patch16_rope_mixed_224", {}, "rope_mixed"),
        ("vit_pe_core_gigantic_patch14_448", {}, "pe_core"),
        ("vit_tiny_patch16_224", {"act_layer": "relu"}, "found 'relu'"),
        ("vit_tiny_patch16_224", {"norm_layer": "rmsnorm"}, "rmsnorm"),
        ("vit_tiny_patch16_224", {"scale_attn_norm": True}, "scale_attn_norm"),
        ("vit_tiny_patch16_224", {"global_pool": "avgmax"}, "global_pool 'avgmax' with a class token"),
        (
            "vit_tiny_patch16_224",
            {"global_pool": "max", "pool_include_prefix": True},
            "global_pool 'max' with a class token, which the pooling includes",
        ),
        ("vit_tiny_patch16_224", {"global_pool": "map"}, "leaves out its 1 first tokens"),
    ],
)
def test_arithmetic_that_we_have_not_is_named(
    tmp_path: Path, architecture: str, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(VitkitError, match=words):
        load_model(folder_of(tmp_path, state(), config_json(architecture, **arguments)))


def test_attention_pooling_that_leaves_out_registers_is_refused(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["map with registers"]), tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_args"]["pool_include_prefix"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VitkitError, match="leaves out its 2 first tokens"):
        load_model(tmp_path)


def test_a_resnet_that_is_no_bit_is_refused_and_its_size_asked_for(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["BiT"]), tmp_path, format="timm")
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "architecture": "resnetv2_50d_gn"}))
    with pytest.raises(VitkitError, match="resnetv2_50d_gn is no BiT"):
        load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(VitkitError, match="give image_size"):
        load_model(tmp_path)
    assert load_model(tmp_path, image_size=32).config.standardization_eps == 1e-8


CUSTOM = {"layers": [1, 2], "channels": [128, 256], "stem_chs": 32, "stem_type": "fixed"}


def custom_resnet(folder: Path, **changes: Any) -> ImageModel:
    """Write a small ResNet under timm's names, with `model_args` that say all of it; None leaves one out."""
    model = random_model(
        ResNetConfig((32, 32), (1, 2), 5, root_width=32, stage_widths=(128, 256), standardization_eps=1e-8)
    )
    renames = (
        ("root.", "stem.conv."),
        (".proj.", ".downsample.conv."),
        ("head.", "head.fc."),
        *(
            (f"stages.{stage}.{unit}.", f"stages.{stage}.blocks.{unit}.")
            for stage in (0, 1)
            for unit in (0, 1)
        ),
    )
    tensors = {}
    for key, tensor in model.state_dict().items():
        for ours, theirs in renames:
            key = key.replace(ours, theirs)
        tensors[key] = (tensor[:, :, None, None] if key == "head.fc.weight" else tensor).contiguous()
    save_file(tensors, folder / "model.safetensors")
    arguments = {key: value for key, value in (CUSTOM | changes).items() if value is not None}
    described = {"architecture": "resnetv2_custom", "model_args": arguments}
    sized = {"pretrained_cfg": {"input_size": [3, 32, 32]}}
    (folder / "config.json").write_text(json.dumps(described | sized))
    return model


@pytest.mark.parametrize(
    ("changes", "padding", "eps"),
    [
        ({}, "zeros", 1e-8),
        ({"stem_type": ""}, "lowest", 1e-6),
        ({"stem_type": None, "preact": True, "output_stride": 32}, "lowest", 1e-6),
        ({"channels": [64, 128], "stem_chs": 16, "width_factor": 2}, "zeros", 1e-8),
    ],
)
def test_a_resnet_of_any_size_is_read_by_its_arguments(
    tmp_path: Path, changes: dict[str, Any], padding: Any, eps: float
) -> None:
    model = custom_resnet(tmp_path, **changes)
    found = load_model(tmp_path)
    expected = build_model(replace(model.config, max_pool_padding=padding, standardization_eps=eps))
    expected.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(found(images), expected(images))
    assert f"{eps:g} is taken" in card_of(found).origin["notes"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stem_type": "same"}, "stem_type: expected 'fixed' or '' for resnetv2_custom, found 'same'"),
        ({"layers": [2, 2]}, "these two do not belong together"),
        ({"channels": [128, 512]}, "these two do not belong together"),
        ({"stem_chs": None}, "these two do not belong together"),
        ({"layers": None}, "these two do not belong together"),
        ({"avg_down": True}, "avg_down=True"),
        ({"preact": False}, "preact=False"),
        ({"bottle_ratio": 0.5}, "bottle_ratio=0.5"),
        ({"act_layer": "silu"}, "act_layer='silu'"),
        ({"output_stride": 16}, "output_stride=16"),
        ({"layers": "1, 2"}, "model_args: layers: "),
    ],
)
def test_a_resnet_of_other_arithmetic_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    custom_resnet(tmp_path, **changes)
    with pytest.raises(VitkitError, match=words):
        load_model(tmp_path)


def test_a_stem_of_three_convolutions_is_refused_by_name(tmp_path: Path) -> None:
    custom_resnet(tmp_path, stem_type="deep")
    tensors = load_file(tmp_path / "model.safetensors")
    deep = {"stem.conv1.weight": torch.zeros(16, 3, 3, 3)}
    del tensors["stem.conv.weight"]
    save_file(tensors | deep, tmp_path / "model.safetensors")
    with pytest.raises(VitkitError, match="a stem of three convolutions"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(TINY, position="relative"), "position relative"),
        (replace(TINY, position_at="every_layer"), "position_at every_layer"),
        (replace(TINY, representation_size=7), "tanh layer"),
        (replace(TINY, pool="mean", attention="axial"), "attention axial"),
        (replace(TINY, image_size=(64, 64), patch_size=(1, 1), backbone=BackboneConfig((1, 1))), "hybrid of"),
        (ResNetConfig((32, 32), (2, 2, 2, 2), num_classes=5), "resnetv2_50x1_bit"),
    ],
)
def test_what_timm_cannot_build_is_not_written(tmp_path: Path, config: ModelConfig, words: str) -> None:
    with pytest.raises(VitkitError, match=words):
        save_model(build_model(config), tmp_path / "theirs", format="timm")
    assert not (tmp_path / "theirs").exists()


def test_arithmetic_that_timm_cannot_be_told_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(TINY, image_size=(32, 32), patch_size=(8, 8), backbone=BackboneConfig(()), norm_eps=1e-5)
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(build_model(config), tmp_path, format="timm")
    for words in ("LayerNorm's epsilon 1e-05", "w / (std + eps)", "GroupNorm's epsilon 1e-06"):
        assert words in caplog.text


def test_any_mlp_is_said_by_a_ratio() -> None:
    for width in (32, 36, 192, 1152, 1408, 1664):
        for mlp_dim in range(1, 6 * width, 7):
            assert int(width * _ratio(mlp_dim, width)) == mlp_dim


def test_a_model_of_our_own_format_is_not_overwritten(tmp_path: Path) -> None:
    model = random_model(TINY)
    save_model(model, tmp_path)
    with pytest.raises(VitkitError, match="own format"):
        save_model(model, tmp_path, format="timm")
    assert load_model(tmp_path).config == TINY


def test_dropout_of_two_rates_is_left_out_and_said(tmp_path: Path) -> None:
    model = load_model(folder_of(tmp_path, state(), config_json(proj_drop_rate=0.1)))
    assert model.config.dropout == 0 and "dropout" in card_of(model).origin["notes"][0]


def test_a_config_that_belongs_to_other_weights_is_noticed(tmp_path: Path) -> None:
    config = config_json("vit_base_patch16_224")
    del config["model_args"]["embed_dim"]
    with pytest.raises(
        VitkitError, match=r"vit_base_patch16_224, whose width is 768.*do not belong together"
    ):
        load_model(folder_of(tmp_path, state(), config))


def test_heads_that_contradict_the_config_are_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, state(), config_json())
    assert load_model(folder, num_heads=4).config.num_heads == 4
    with pytest.raises(VitkitError, match="says that it has 4 attention heads, not 2"):
        load_model(folder, num_heads=2)
