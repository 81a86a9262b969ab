"""What of timm is refused by name, assumed or asked for: parts that we lack, and what no file records."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers.refusals import refused
from tests.helpers.timm_files import config_json, folder_of, state
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load, save_model
from vitkit.weights.model_card import card_of


def changed(config: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """`config` with another value at a place like "model_args.img_size"."""
    outer, _, key = place.rpartition(".")
    return {**config, **({outer: {**config[outer], key: value}} if outer else {key: value})}


OTHER_TYPES = [
    ("architecture", [["vit_tiny_patch16_224"]]),
    ("global_pool", [["token"]]),
    ("model_args", [["img_size"], "img_size"]),
    ("model_args.img_size", [1.5, ["a", "b"], [12], 10**30]),
    ("model_args.num_heads", ["x", []]),
    ("model_args.act_layer", [["gelu"]]),
    ("model_args.norm_layer", [["layernorm"]]),
    ("model_args.proj_drop_rate", ["x", 10**400]),
    ("model_args.attn_drop_rate", ["x"]),
    ("model_args.global_pool", [["token"]]),
    ("model_args.pos_embed", [["learn"]]),
    ("model_args.qkv_bias", ["yes"]),
    ("pretrained_cfg", ["default", [1]]),
    ("pretrained_cfg.input_size", ["x"]),
    ("pretrained_cfg.mean", [0.5, ["a", "b", "c"]]),
    ("pretrained_cfg.std", [[0.5, None, 0.5], [0.5, float("nan"), 0.5]]),
    ("pretrained_cfg.crop_pct", ["x", -1, 1e-320]),
    ("pretrained_cfg.crop_mode", [["center"], "middle"]),
    ("pretrained_cfg.interpolation", ["cubic"]),
]


@pytest.mark.parametrize(("place", "values"), OTHER_TYPES)
def test_settings_of_another_type_are_refused_by_name(tmp_path: Path, place: str, values: list[Any]) -> None:
    key, tensors = place.rpartition(".")[2], state()
    for value in values:
        folder_of(tmp_path, tensors, changed(config_json(), place, value))
        refused(rf"config\.json: (.*: )?{key}: ", load_model, tmp_path)


def test_null_in_the_settings_is_the_same_as_absent(tmp_path: Path) -> None:
    config = config_json(act_layer=None, global_pool=None, proj_drop_rate=None, pos_embed=None, img_size=None)
    config["pretrained_cfg"] |= {"mean": None, "std": None, "crop_pct": None, "tag": None}
    assert load_model(folder_of(tmp_path, state(), config)).config.image_size == (12, 16)
    folder_of(tmp_path, state(), changed(config, "model_args.embed_dim", None))
    refused("do not belong together", load_model, tmp_path)
    config = changed(changed(config, "model_args.num_heads", None), "architecture", "vit_peculiar_patch4")
    refused(r"vit_peculiar_patch4.*give num_heads", load_model, folder_of(tmp_path, state(), config))
    assert "vit_peculiar_patch4" in card_of(load_model(tmp_path, num_heads=4)).origin["notes"][0]


NORM = {"fc_norm.weight": (32,), "fc_norm.bias": (32,)}
SWIGLU = {"blocks.0.mlp.fc1.weight": (88, 32), "blocks.0.mlp.fc1.bias": (88,)}
INCLUDED = {"global_pool": "max", "pool_include_prefix": True}


LACKING = [
    # Tensors of another shape, and of parts that are not whole or that no model here has:
    ({"patch_embed.proj.weight": (32, 3, 0, 4)}, {}, r"proj\.weight: expected an array of 4 axes"),
    ({"pos_embed": (13,)}, {}, "pos_embed: expected an array of 3 axes"),
    ({"head.weight": (0, 32)}, {}, r"head\.weight: expected an array of 2 axes"),
    ({"pre_logits.fc.bias": (1, 7)}, {}, r"pre_logits\.fc\.bias: expected an array of 1 axes"),
    ({"dist_token": (1, 1, 32)}, {}, "distillation token"),
    ({"blocks.1.ls1.gamma": (32,)}, {}, r"blocks\.1\.ls1\.gamma: unexpected"),
    ({"blocks.0.ls1.gamma": (32,)}, {}, r"blocks\.0\.ls2\.gamma: missing"),
    ({"blocks.1.gamma_2": (32,)}, {}, "layer scale under the names of BEiT"),
    ({"blocks.0.attn.q_norm.weight": (8,)}, {}, r"blocks\.0\.attn\.k_norm\.weight: missing"),
    ({"fc_norm.weight": (32,)}, {}, r"fc_norm\.bias: missing"),
    (NORM, {"global_pool": "avg"}, r"norm\.bias: unexpected"),
    ({"norm.weight": (), "norm.bias": ()}, {}, "no final norm"),
    (SWIGLU, {}, "SwiGLU"),
    ({"blocks.0.mystery.weight": (3,)}, {}, r"blocks\.0\.mystery\.weight: unexpected"),
    ({"patch_embed.backbone.0.conv.weight": (8, 3, 3, 3)}, {}, "no ResNet with GroupNorm"),
    # Settings of another arithmetic:
    ({}, {"architecture": "vit_base_patch16_rope_mixed_224"}, "rope_mixed"),
    ({}, {"architecture": "vit_pe_core_gigantic_patch14_448"}, "pe_core"),
    ({}, {"num_heads": -4}, "num_heads"),
    ({}, {"act_layer": "relu"}, "found 'relu'"),
    ({}, {"norm_layer": "simplenorm"}, "norm_layer='simplenorm'"),
    ({}, {"scale_attn_norm": True}, "scale_attn_norm"),
    ({}, {"global_pool": "avgmax"}, "global_pool 'avgmax' with a class token"),
    ({}, INCLUDED, "global_pool 'max' with a class token, which the pooling includes"),
    ({}, {"global_pool": "map"}, "leaves out its 1 first tokens"),
]


@pytest.mark.parametrize(("extra", "settings", "message"), LACKING)
def test_what_we_lack_is_named(
    tmp_path: Path, extra: dict[str, tuple[int, ...]], settings: dict[str, Any], message: str
) -> None:
    refused(message, load_model, folder_of(tmp_path, state(extra=extra), config_json(**settings)))


def test_settings_that_contradict_each_other_or_the_weights_are_refused(tmp_path: Path) -> None:
    model = load_model(folder_of(tmp_path, state(), config_json(proj_drop_rate=0.1)))
    assert model.config.dropout == 0 and "dropout" in card_of(model).origin["notes"][0]
    assert load_model(tmp_path, num_heads=4).config.num_heads == 4
    refused("says that it has 4 attention heads, not 2", load_model, tmp_path, num_heads=2)
    config = config_json("vit_base_patch16_224")
    del config["model_args"]["embed_dim"]
    message = r"vit_base_patch16_224, whose width is 768.*do not belong together"
    refused(message, load_model, folder_of(tmp_path, state(), config))


# What a file of timm does not record: heads, grids, biases and pixels are assumed or asked for

NO_BIAS: dict[str, tuple[int, ...]] = {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}
GIVEN: dict[str, Any] = {"num_heads": 4, "image_size": (12, 16)}


def test_without_a_config_the_rest_is_asked_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Facebook's DeiT, DINO and MAE come so; their statistics are ImageNet's."""
    path = tmp_path / "vit.pth"
    torch.save(state(width=128, positions=10), path)
    refused("num_heads=2", load_model, path)
    model = load_model(path, num_heads=2)
    assert (model.config.image_size, model.config.gelu, model.config.norm_eps) == ((12, 12), "erf", 1e-6)
    card = card_of(model)
    assert "no config.json" in card.origin["notes"][0]
    assert [assumption.what for assumption in card.assumed] == ["pixel statistics", "resizing"]
    assert card.preprocessing == Preprocessing((12, 12), "shortest", 0.9, interpolation="bicubic")
    assert "does not say its pixel statistics; assumed: pixel mean 0.5 and std 0.5" in caplog.text
    assert "DINO" in caplog.text and "--image-mean" in caplog.text
    assert "does not say its resizing; assumed: the shortest side resized to 13 by bicubic" in caplog.text
    # What was assumed travels with the model.
    assert card_of(load_model(save_model(model, tmp_path / "ours"))).assumed == card.assumed
    caplog.clear()
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = load_model(path, num_heads=2, image_mean=mean, image_std=std)
    assert (model.config.image_mean, model.config.image_std) == (mean, std)
    assert [assumption.what for assumption in card_of(model).assumed] == ["resizing"]
    assert "pixel statistics" not in caplog.text
    assert load_model(path, num_heads=2, image_mean=(0.4,)).config.image_mean == (0.4,) * 3
    refused("one value per channel", load_model, path, num_heads=2, image_mean=(0.4, 0.5))


@pytest.mark.parametrize(
    ("positions", "size", "inside"),
    [
        (9, (16, 8), True),  # 4 x 2 and the class token, or 3 x 3
        (9, (12, 12), False),
        (225, (56, 64), True),  # 14 x 16 and the class token, or 15 x 15
        (17, (16, 16), True),  # 4 x 4 and the class token: nothing else is square
        (13, (12, 16), True),
        (12, (12, 16), False),
    ],
)
def test_a_grid_with_two_readings_is_asked_about_and_the_size_given_decides(
    positions: int, size: tuple[int, int], inside: bool, tmp_path: Path
) -> None:
    tensors = state(positions=positions)
    torch.save(tensors, tmp_path / "vit.pth")
    loaded = load(tmp_path / "vit.pth", LoadOptions(num_heads=4, image_size=size))
    assert loaded.identity.config.image_size == size
    assert not any("embeddings resized" in note for note in loaded.notes)
    assert loaded.model.config.class_token_position == inside
    assert torch.equal(loaded.model.state_dict()["positions.0.embedding"], tensors["pos_embed"])


def test_both_readings_of_a_grid_are_named(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "vit.pth")
    refused("13 position embeddings.*image_size", load_model, tmp_path / "vit.pth", num_heads=4)
    torch.save(state(positions=225), tmp_path / "vit.pth")
    message = "a grid that is no square and 1 token before the patches, or a grid of 15x15 without a position"
    for size in (None, (32, 32)):  # a size that fits neither does not tell
        refused(message, load_model, tmp_path / "vit.pth", num_heads=4, image_size=size)
    torch.save(state(positions=9, extra={"reg_token": (1, 4, 32)}), tmp_path / "vit.pth")
    message = "a grid of 2x2 and 5 tokens before the patches, or a grid of 3x3 without a position for the 5"
    refused(message, load_model, tmp_path / "vit.pth", num_heads=4)
    for side, inside in ((8, True), (12, False)):
        config = load_model(tmp_path / "vit.pth", num_heads=4, image_size=side).config
        assert config.class_token_position == inside and config.register_tokens == 4
    # A rectangle of as many places as the usual square is resized to.
    torch.save(state(positions=17), tmp_path / "vit.pth")
    loaded = load(tmp_path / "vit.pth", LoadOptions(num_heads=4, image_size=(8, 32)))
    assert loaded.identity.config.image_size == (16, 16)
    assert any("resized from a grid of 4x4 to 2x8" in note for note in loaded.notes)


def test_biases_are_those_that_the_config_says_or_of_all_blocks_or_none(tmp_path: Path) -> None:
    whole, without, path = state(), state(extra=NO_BIAS), tmp_path / "alone" / "vit.pth"
    path.parent.mkdir()
    model = load_model(folder_of(tmp_path, without, config_json(qkv_bias=False)))
    weights = model.state_dict()
    assert not weights["blocks.1.attention.qkv.bias"].any()
    assert torch.equal(weights["blocks.1.attention.qkv.weight"], without["blocks.1.attn.qkv.weight"])
    by_name = load_model(folder_of(tmp_path, without, config_json("vit_base_patch16_224_miil")))
    assert not by_name.state_dict()["blocks.0.attention.qkv.bias"].any()
    cases: list[tuple[dict[str, Tensor], dict[str, Any], str]] = [
        (without, {}, r"blocks\.0\.attn\.qkv\.bias: missing"),
        (state(extra={"blocks.0.attn.qkv.bias": ()}), {}, r"blocks\.0\.attn\.qkv\.bias: missing"),
        (whole, {"qkv_bias": False}, r"blocks\.0\.attn\.qkv\.bias: unexpected"),
    ]
    for tensors, arguments, message in cases:
        refused(message, load_model, folder_of(tmp_path, tensors, config_json(**arguments)))
    for name in NO_BIAS:  # without a config
        torch.save({key: tensor for key, tensor in whole.items() if key != name}, path)
        refused(f"{name}: missing", load_model, path, **GIVEN)
    torch.save(without, path)
    assert not load_model(path, **GIVEN).state_dict()["blocks.1.attention.qkv.bias"].any()


def test_positions_are_missing_unless_the_config_says_that_there_are_none(tmp_path: Path) -> None:
    tensors = state(extra={"pos_embed": ()})
    refused("pos_embed: missing", load_model, folder_of(tmp_path, tensors, config_json()))
    for none in ("none", "", False):
        model = load_model(folder_of(tmp_path, tensors, config_json(pos_embed=none)))
        assert model.config.position == "none" and "notes" not in card_of(model).origin
    refused("pos_embed: unexpected", load_model, folder_of(tmp_path, state(), config_json(pos_embed="none")))
    folder_of(tmp_path, state(), config_json(pos_embed="rope"))
    refused("pos_embed: expected learn or none", load_model, tmp_path)
    (tmp_path / "config.json").unlink()
    save_file(tensors, tmp_path / "model.safetensors")
    model = load_model(tmp_path, **GIVEN)
    assert model.config.position == "none"
    assert "no pos_embed" in card_of(model).origin["notes"][1]


def test_a_file_that_two_architectures_fit_is_refused_without_its_config(tmp_path: Path) -> None:
    """timm's post-norm model has these tensors; one part more, and they are an ordinary model's alone."""
    absent: dict[str, tuple[int, ...]] = {"cls_token": (), "norm.weight": (), "norm.bias": ()}
    absent |= NO_BIAS
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
    refused(r"two models .*rpn_224.* put the config\.json", load, tmp_path / "vit.pth", options)
    config = config_json(global_pool="avg", class_token=False, qkv_bias=False)
    assert load(folder_of(tmp_path, tensors, config)).model.config.norm_after_pooling
