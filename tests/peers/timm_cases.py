"""timm and torchvision against vitkit, both ways through files; weights, heads and images are random."""

import gc
import importlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.peers.case import Case
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.config import BackboneConfig, ResNetConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.weights.loading import save_model

VIT_ALLOWED = 1e-5
BIT_ALLOWED = 1e-4
"""Logits have a spread of about 1. A BiT's feature maps grow with every unit, as nothing norms their sum."""


@dataclass(frozen=True)
class Spec:
    """One model in both libraries."""

    timm: str
    vitkit: str
    size: int = 224
    other: int = 160
    """Another image size, to which both resize the position embeddings."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Of timm's model."""
    fields: dict[str, Any] = field(default_factory=dict)
    """Of our configuration, where no name says them."""
    allowed: float = VIT_ALLOWED


GAP = {"class_token": False, "global_pool": "avg", "fc_norm": False}
MAP = {"class_token": False, "global_pool": "map"}
FOUR = {"reg_tokens": 4}
UNPLACED = FOUR | {"no_embed_class": True}
TANH = {"act_layer": "gelu_tanh", "qkv_bias": False}
CLIP = {"norm_before_blocks": True, "norm_eps": 1e-5, "gelu": "quick"}
MAE = {"pool": "mean", "extra_class_token": True, "norm_after_pooling": True}
NARROW = (128, 256, 128, 384)
TI, BIT = "vit_tiny_patch16_224", "resnetv2_50x1_bit"

SPECS = (
    Spec(TI, "ViT-Ti/16"),
    Spec("vit_small_patch32_224", "ViT-S/32", other=288),
    Spec("vit_base_patch16_224", "ViT-B/16"),
    Spec("vit_base_patch32_224", "ViT-B/32", other=288),
    Spec("vit_large_patch16_224", "ViT-L/16", 96, 64),
    Spec("vit_huge_patch14_224", "ViT-H/14", 56, 70),
    Spec(TI, "ViT-Ti/16-gap", arguments=GAP),
    Spec(TI, "ViT-Ti/16-reg4", arguments=FOUR),
    Spec(TI, "ViT-Ti/16-gap-reg4", arguments=GAP | UNPLACED),
    Spec(TI, "ViT-Ti/16-map", arguments=MAP),
    Spec(TI, "ViT-Ti/16-map-reg4", arguments=MAP | FOUR | {"pool_include_prefix": True}),
    Spec(TI, "ViT-Ti/16-nopos", arguments={"pos_embed": "none"}),
    Spec("vit_small_patch16_224", "ViT-S/16", arguments=TANH),
    Spec("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16"),
    Spec("vit_small_r26_s32_224", "R26+ViT-S/32", other=288),
    Spec("vit_large_r50_s32_224", "R50+ViT-L/32", 96, 128),
    Spec(TI, "ViT-Ti/16", 224, 160, {"init_values": 0.5, "global_pool": "avg"}, MAE | {"layer_scale": 0.5}),
    Spec(TI, "ViT-Ti/16-gap-reg4", 224, 160, GAP | UNPLACED | {"global_pool": "max"}, {"pool": "max"}),
    Spec(TI, "ViT-Ti/16-qknorm", arguments={"qk_norm": True}),
    Spec(TI, "ViT-Ti/16-map-rms-qknorm", arguments=MAP | {"norm_layer": "rmsnorm", "qk_norm": True}),
    Spec("vit_base_patch16_clip_quickgelu_224", "ViT-B/16", fields=CLIP),
    Spec("flexivit_small", "ViT-S/16", 240, 160, fields={"class_token_position": False}),
    Spec(BIT, "BiT-R50x1", allowed=BIT_ALLOWED),
    Spec(
        *(BIT, "BiT-R50x1", 96, 65, {"channels": NARROW, "stem_chs": 32}),
        {"root_width": 32, "stage_widths": NARROW},
        BIT_ALLOWED,
    ),
    Spec("resnetv2_101x1_bit", "BiT-R101x1", 128, 96, allowed=BIT_ALLOWED),
)


def cases() -> Iterator[Case]:
    """Every model both ways at two sizes, one model at a time."""
    for spec in SPECS:
        for way in (timm_to_vitkit, vitkit_to_timm):
            with tempfile.TemporaryDirectory() as folder, torch.no_grad():
                yield from way(spec, Path(folder))
            gc.collect()
    yield from torchvision_cases()


def timm_to_vitkit(spec: Spec, folder: Path) -> Iterator[Case]:
    timm: Any = importlib.import_module("timm")
    theirs = timm.create_model(spec.timm, **_sized(spec, spec.size), **spec.arguments).eval()
    randomize(theirs)
    sized = {"input_size": (3, spec.size, spec.size)}
    timm.models.save_for_hf(theirs, str(folder), safe_serialization=True, data_config=sized)
    ours = load_model(folder)
    way = "timm -> vitkit"
    yield compare(spec.vitkit, way, spec.size, theirs, ours, spec.allowed)
    del theirs, ours
    yield at_other_size(spec, way, folder)


def vitkit_to_timm(spec: Spec, folder: Path) -> Iterator[Case]:
    timm: Any = importlib.import_module("timm")
    ours = build_model(configured(spec)).eval()
    randomize(ours)
    save_model(ours, folder, format="timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    way = "vitkit -> timm"
    yield compare(spec.vitkit, way, spec.size, theirs, ours, spec.allowed)
    del theirs, ours
    yield at_other_size(spec, way, folder)


def at_other_size(spec: Spec, way: str, folder: Path) -> Case:
    """The same folder at another size: both libraries resize its position embeddings."""
    timm: Any = importlib.import_module("timm")
    theirs = timm.create_model(f"local-dir:{folder}", pretrained=True, **_sized(spec, spec.other)).eval()
    ours = load_model(folder, image_size=spec.other)
    return compare(spec.vitkit, way, spec.other, theirs, ours, spec.allowed)


def _sized(spec: Spec, size: int) -> dict[str, int]:
    """timm's ResNets take images of any size."""
    return {} if spec.timm.startswith("resnetv2") else {"img_size": size}


def configured(spec: Spec) -> ModelConfig:
    """Make our configuration of a model, in the arithmetic of ResNets that timm has."""
    config = replace(model_config(spec.vitkit, image_size=spec.size), **spec.fields)
    if isinstance(config, ResNetConfig):
        return replace(config, standardization_eps=1e-8)
    if config.backbone is None:
        return config
    return replace(config, backbone=BackboneConfig(config.backbone.layers, 1.0, 1e-5, "variance", 1e-8))


def randomize(model: nn.Module, seed: int = 0) -> None:
    """New weights hide mistakes behind zeros and ones: move all, and give the head logits of about 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name in ("head.weight", "head.fc.weight", "heads.head.weight"):
            parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
        elif "norm" in name or "ln" in name or parameter.ndim < 2:
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.1, generator=generator))
        else:
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.01, generator=generator))


def compare(
    name: str,
    direction: str,
    size: int | tuple[int, int],
    theirs: Callable[[Tensor], Tensor],
    ours: ImageModel,
    allowed: float,
) -> Case:
    """Both models on the same two images."""
    rows, columns = (size, size) if isinstance(size, int) else size
    images = torch.randn(2, 3, rows, columns, generator=torch.Generator().manual_seed(rows))
    with torch.inference_mode():
        expected, logits = theirs(images), ours(images)
    if not isinstance(expected, Tensor) or expected.shape != logits.shape or not float(expected.std()) > 0.1:
        raise AssertionError(f"{name}: these logits compare nothing: {expected}")
    difference = float((expected - logits).abs().max())
    agreement = float((expected.argmax(-1) == logits.argmax(-1)).float().mean())
    shown = str(rows) if rows == columns else f"{rows}x{columns}"
    return Case(name, direction, shown, difference, allowed, agreement)


def torchvision_cases() -> Iterator[Case]:
    """vit_b_16 both ways at its own size, and read at another."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:
        print(f"torchvision is left out, it cannot be imported: {error}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "vit_b_16.pth"
        theirs, way = models.vit_b_16().eval(), "torchvision -> vitkit"
        randomize(theirs)
        torch.save(theirs.state_dict(), file)
        yield compare("ViT-B/16", way, 224, theirs, load_model(file), VIT_ALLOWED)
        resize = models.vision_transformer.interpolate_embeddings
        other = models.vit_b_16(image_size=160).eval()
        other.load_state_dict(resize(160, 16, dict(theirs.state_dict())))
        yield compare("ViT-B/16", way, 160, other, load_model(file, image_size=160), VIT_ALLOWED)
        config = model_config("ViT-B/16")
        assert isinstance(config, ViTConfig)
        ours = build_model(replace(config, gelu="erf")).eval()
        randomize(ours, seed=1)
        save_model(ours, file, format="torchvision")
        theirs.load_state_dict(torch.load(file, weights_only=True))
        yield compare("ViT-B/16", "vitkit -> torchvision", 224, theirs, ours, VIT_ALLOWED)
