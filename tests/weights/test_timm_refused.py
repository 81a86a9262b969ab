"""What of timm is refused by name: settings of another type, misshapen tensors, parts that vitkit lacks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY, config_json, folder_of, state
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.weights.model_card import card_of
from vitkit.weights.saving import save_model


def changed(config: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """`config` with another value at a place like "model_args.img_size"."""
    outer, _, key = place.rpartition(".")
    return {**config, **({outer: {**config[outer], key: value}} if outer else {key: value})}


@pytest.mark.parametrize(
    ("place", "values"),
    [
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
    ],
)
def test_settings_of_another_type_are_refused_by_name(tmp_path: Path, place: str, values: list[Any]) -> None:
    key, tensors = place.rpartition(".")[2], state()
    for value in values:
        with pytest.raises(VitkitError, match=rf"config\.json: (.*: )?{key}: "):
            load_model(folder_of(tmp_path, tensors, changed(config_json(), place, value)))
    if key == "num_heads":
        with pytest.raises(VitkitError, match=key):
            load_model(folder_of(tmp_path, tensors, changed(config_json(), place, -4)))


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
    ("extra", "message"),
    [
        ({"dist_token": (1, 1, 32)}, "distillation token"),
        ({"blocks.1.ls1.gamma": (32,)}, r"blocks\.1\.ls1\.gamma: unexpected"),
        ({"blocks.0.ls1.gamma": (32,)}, r"blocks\.0\.ls2\.gamma: missing"),
        ({"blocks.1.gamma_2": (32,)}, "layer scale under the names of BEiT"),
        ({"blocks.0.attn.q_norm.weight": (8,)}, r"blocks\.0\.attn\.k_norm\.weight: missing"),
        ({"norm_pre.weight": (32,)}, r"norm_pre\.bias: missing"),
        ({"fc_norm.weight": (32,)}, r"fc_norm\.bias: missing"),
        ({"fc_norm.weight": (32,), "fc_norm.bias": (32,)}, r"norm\.bias: unexpected"),
        ({"norm.weight": (), "norm.bias": ()}, "no final norm"),
        ({"blocks.0.mlp.fc1.weight": (88, 32), "blocks.0.mlp.fc1.bias": (88,)}, "SwiGLU"),
        ({"blocks.0.mystery.weight": (3,)}, r"blocks\.0\.mystery\.weight: unexpected"),
        ({"blocks.1.norm2.bias": ()}, r"blocks\.1\.norm2\.bias: missing"),
        ({"patch_embed.backbone.0.conv.weight": (8, 3, 3, 3)}, "no ResNet with GroupNorm"),
    ],
)
def test_parts_that_we_have_not_are_named(
    tmp_path: Path, extra: dict[str, tuple[int, ...]], message: str
) -> None:
    described = config_json(global_pool="avg" if "fc_norm.bias" in extra else "token")
    with pytest.raises(VitkitError, match=message):
        load_model(folder_of(tmp_path, state(extra=extra), described))


TINY_NAME = "vit_tiny_patch16_224"
INCLUDED = {"global_pool": "max", "pool_include_prefix": True}


@pytest.mark.parametrize(
    ("architecture", "arguments", "message"),
    [
        ("vit_base_patch16_rope_mixed_224", {}, "rope_mixed"),
        ("vit_pe_core_gigantic_patch14_448", {}, "pe_core"),
        (TINY_NAME, {"act_layer": "relu"}, "found 'relu'"),
        (TINY_NAME, {"norm_layer": "simplenorm"}, "norm_layer='simplenorm'"),
        (TINY_NAME, {"scale_attn_norm": True}, "scale_attn_norm"),
        (TINY_NAME, {"global_pool": "avgmax"}, "global_pool 'avgmax' with a class token"),
        (TINY_NAME, INCLUDED, "global_pool 'max' with a class token, which the pooling includes"),
        (TINY_NAME, {"global_pool": "map"}, "leaves out its 1 first tokens"),
    ],
)
def test_arithmetic_that_we_have_not_is_named(
    tmp_path: Path, architecture: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(folder_of(tmp_path, state(), config_json(architecture, **arguments)))


def test_attention_pooling_that_leaves_out_registers_is_refused(tmp_path: Path) -> None:
    save_model(random_model(replace(TINY, pool="map", register_tokens=2)), tmp_path, format="timm")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_args"]["pool_include_prefix"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(VitkitError, match="leaves out its 2 first tokens"):
        load_model(tmp_path)


def test_settings_that_contradict_each_other_or_the_weights_are_refused(tmp_path: Path) -> None:
    model = load_model(folder_of(tmp_path, state(), config_json(proj_drop_rate=0.1)))
    assert model.config.dropout == 0 and "dropout" in card_of(model).origin["notes"][0]
    assert load_model(tmp_path, num_heads=4).config.num_heads == 4
    with pytest.raises(VitkitError, match="says that it has 4 attention heads, not 2"):
        load_model(tmp_path, num_heads=2)
    config = config_json("vit_base_patch16_224")
    del config["model_args"]["embed_dim"]
    message = r"vit_base_patch16_224, whose width is 768.*do not belong together"
    with pytest.raises(VitkitError, match=message):
        load_model(folder_of(tmp_path, state(), config))
