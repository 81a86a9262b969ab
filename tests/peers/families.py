"""Today's families, read from files with the names of their own libraries: features and logits.

    python -m tests.peers.families [--write] [CLONE] [NAME ...]    (in the environment of scripts/test-peers)

Each model is compared at its own size, at another and at a rectangle, for which its library resizes positions
by its own rule. CLONE is a copy of github.com/facebookresearch/dinov2, which no registry has: without it
DINOv2's own code is left out. `--write` writes the numbers that the ordinary tests compare with. Exits with 1
if a difference is above `ALLOWED`.
"""

import importlib
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.peers.fixed_weights import fixed_tensor
from tests.peers.huggingface_cases import answer_of, transformers
from vitkit.jobs.convert import import_library
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load

NUMBERS = Path(__file__).parents[1] / "fixtures" / "r_families.npz"
"""For each model the file, as names and shapes, and the library's outputs for fixed weights and images."""
ALLOWED = 1e-5
"""Of the largest value: float32, with sums in another order."""
Size = tuple[int, int]
SIZES: tuple[Size, ...] = ((32, 32), (48, 48), (40, 24), (224, 224))
"""The own size, in patches of 8; another; a rectangle; and that of most published models."""
SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_labels": 5}
IMAGES = {"image_size": 32, "patch_size": 8}
USUAL = {**SHAPE, **IMAGES, "intermediate_size": 128}
TEXT = {"vocab_size": 50, "max_position_embeddings": 8, "intermediate_size": 64}
TEXT |= {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
BIT = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [2, 1], "num_labels": 5}
BEIT = {**USUAL, "use_relative_position_bias": True}


@dataclass(frozen=True)
class Peer:
    """A model of transformers: its class, and the fields of its configuration."""

    model: str
    fields: dict[str, Any]
    vision: dict[str, Any] | None = None
    """The fields of the tower for images, where it has one for texts too."""
    answer: Callable[..., Any] | None = None
    """Computes the output, where it is neither the logits nor what is pooled."""
    modules: bool = False
    """Whether the file has the names that its modules have in memory."""


@dataclass(frozen=True)
class Made:
    """A file, and the outputs that its library computes with it."""

    file: str
    tensors: Mapping[str, Tensor]
    answer: Callable[[Tensor], Tensor]
    """Computes the outputs of images of any of `SIZES`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """JSON files beside the weights, by name."""
    num_heads: int | None = None
    """Heads, where the file does not record them."""


def image_features(model: Any, images: Tensor, **options: Any) -> Any:
    """The output of a model of two towers for images alone."""
    return model.get_image_features(images, **options).pooler_output


def embedded(model: Any, images: Tensor, **options: Any) -> Any:
    return model(images, **options).image_embeds


def of_any_size(model: Any, images: Tensor, **_options: Any) -> Any:
    return model(images).logits


def unmasked(model: Any, images: Tensor, **options: Any) -> Any:
    """The class token of MAE's encoder that sees all patches, in their order."""
    patches = images.shape[2] // 8 * (images.shape[3] // 8)
    noise = torch.arange(patches, dtype=torch.float32).expand(len(images), -1)
    encoder = getattr(model, "vit", model)
    return encoder(images, noise=noise, **options).last_hidden_state[:, 0]


def mean_of_patches(model: Any, images: Tensor, **options: Any) -> Any:
    return model(images, **options).last_hidden_state.mean(1)


REGISTERS = USUAL | {"num_register_tokens": 4}
SWIGLU = {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False}
ABSOLUTE = {"use_absolute_position_embeddings": True, "layer_scale_init_value": 0.0}
PROJECTED, CLASSES, ALL_PATCHES = {"projection_dim": 24}, {"num_labels": 5}, USUAL | {"mask_ratio": 0.0}
PEERS: dict[str, Peer] = {
    "dinov2": Peer("Dinov2Model", SHAPE | IMAGES),
    "dinov2, classifier": Peer("Dinov2ForImageClassification", SHAPE | IMAGES),
    "dinov2, SwiGLU": Peer("Dinov2ForImageClassification", SHAPE | IMAGES | {"use_swiglu_ffn": True}),
    "dinov2_with_registers": Peer("Dinov2WithRegistersModel", SHAPE | IMAGES),
    "dinov2_with_registers, classifier": Peer(
        "Dinov2WithRegistersForImageClassification", SHAPE | IMAGES | {"use_swiglu_ffn": True}
    ),
    "dinov3_vit": Peer("DINOv3ViTModel", REGISTERS),
    "dinov3_vit, SwiGLU": Peer("DINOv3ViTModel", REGISTERS | SWIGLU),
    "siglip": Peer("SiglipModel", {}, USUAL, image_features),
    "siglip_vision_model": Peer("SiglipVisionModel", USUAL),
    "siglip, classifier": Peer("SiglipForImageClassification", CLASSES, USUAL),
    "clip": Peer("CLIPModel", PROJECTED, USUAL, image_features),
    "clip_vision_model": Peer("CLIPVisionModel", USUAL),
    "clip_vision_model, exact GELU": Peer("CLIPVisionModel", USUAL | {"hidden_act": "gelu"}),
    "clip, projection": Peer("CLIPVisionModelWithProjection", USUAL | PROJECTED, answer=embedded),
    "clip, classifier": Peer("CLIPForImageClassification", CLASSES, USUAL),
    "vit": Peer("ViTModel", USUAL),
    "vit, classifier": Peer("ViTForImageClassification", USUAL),
    "bit, classifier": Peer("BitForImageClassification", BIT, answer=of_any_size),
    "vit_mae": Peer("ViTMAEModel", ALL_PATCHES, answer=unmasked),
    "vit_mae, with its decoder": Peer("ViTMAEForPreTraining", ALL_PATCHES, answer=unmasked),
    "metaclip_2": Peer("MetaClip2Model", PROJECTED, USUAL, image_features),
    "metaclip_2, classifier": Peer("MetaClip2ForImageClassification", CLASSES, USUAL),
    "ijepa": Peer("IJepaModel", USUAL, answer=mean_of_patches),
    "ijepa, classifier": Peer("IJepaForImageClassification", USUAL),
    "deit": Peer("DeiTModel", USUAL),
    "deit, classifier": Peer("DeiTForImageClassification", USUAL),
    "beit": Peer("BeitModel", BEIT),
    "beit, classifier": Peer("BeitForImageClassification", BEIT),
    "beit, class token": Peer("BeitForImageClassification", BEIT | {"use_mean_pooling": False}),
    "beit, absolute positions": Peer("BeitForImageClassification", USUAL | ABSOLUTE),
}


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw the tensors of a file, with which no part is without effect."""
    return {name: fixed_tensor(name, tuple(shape), 0.2) for name, shape in shapes.items()}


def of_transformers(peer: Peer) -> Made:
    fields = dict(peer.fields)
    if peer.vision is not None:
        fields |= {"vision_config": peer.vision, "text_config": TEXT}
    kind = getattr(transformers(), peer.model)
    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), Path(name) / "model.safetensors"
        kind(kind.config_class(**fields)).save_pretrained(folder)
        with safe_open(file, "pt") as opened:
            tensors = drawn({key: tuple(opened.get_slice(key).get_shape()) for key in opened.keys()})  # noqa: SIM118
        save_file(tensors, file, {"format": "pt"})
        model = kind.from_pretrained(folder).eval()
        settings = {"config.json": json.loads((folder / "config.json").read_text())}
    if peer.modules:
        tensors = drawn({key: tuple(tensor.shape) for key, tensor in model.state_dict().items()})
        model.load_state_dict(tensors)

    def answer(images: Tensor) -> Tensor:
        options = {"interpolate_pos_encoding": True} if images.shape[2:] != SIZES[0] else {}
        whole = partial(peer.answer, model) if peer.answer else answer_of(model)
        return whole(images, **options)

    return Made("model.safetensors", tensors, answer, settings)


def of_timm(architecture: str, config: bool = True, **arguments: Any) -> Made:
    timm = import_library("timm")
    small = {"embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 5, "patch_size": 8, **arguments}
    model = timm.create_model(architecture, img_size=32, **small).eval()
    tensors = drawn({key: tuple(tensor.shape) for key, tensor in model.state_dict().items()})
    model.load_state_dict(tensors)
    settings: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        said = {"img_size": 32, **small}
        timm.models.save_for_hf(model, name, safe_serialization=True, model_args=said)
        if config:
            settings["config.json"] = json.loads((Path(name) / "config.json").read_text())

    def answer(images: Tensor) -> Tensor:
        if images.shape[2:] == SIZES[0]:
            return model(images)  # type: ignore[no-any-return]
        other = timm.create_model(architecture, img_size=tuple(images.shape[2:]), **small).eval()
        adapted = importlib.import_module(type(model).__module__).checkpoint_filter_fn(dict(tensors), other)
        other.load_state_dict(adapted)
        return other(images)  # type: ignore[no-any-return]

    return Made("model.safetensors", tensors, answer, settings)


def of_open_clip(quick: bool = False, **fields: Any) -> Made:
    clip: Any = importlib.import_module("open_clip.model")
    vision = {"layers": 2, "width": 64, "head_width": 32, "patch_size": 8, "image_size": 32, **fields}
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    described = {"embed_dim": 24, "quick_gelu": quick, "vision_cfg": vision, "text_cfg": text}

    def build(size: Any) -> Any:
        return clip.CLIP(24, {**vision, "image_size": size}, text, quick_gelu=quick).eval()

    tensors = drawn({key: tuple(tensor.shape) for key, tensor in build(32).state_dict().items()})

    def answer(images: Tensor) -> Tensor:
        model, state = build(tuple(images.shape[2:])), dict(tensors)
        clip.resize_pos_embed(state, model)
        model.load_state_dict(state)
        return model.encode_image(images)  # type: ignore[no-any-return]

    settings = {"open_clip_config.json": {"model_cfg": described, "preprocess_cfg": {}}}
    return Made("open_clip_model.safetensors", tensors, answer, settings)


def of_dinov2(**arguments: Any) -> Made:
    module: Any = importlib.import_module("dinov2.models.vision_transformer")
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 2}
    model = module.DinoVisionTransformer(**sizes, init_values=1.0, block_chunks=0, **arguments).eval()
    tensors = drawn({key: tuple(tensor.shape) for key, tensor in model.state_dict().items()})
    model.load_state_dict(tensors)
    return Made("weights.pth", tensors, model, num_heads=2)


def of_mae() -> Made:
    """MAE's encoder, which is timm's ViT, beside its decoder; its own code runs with no timm of today."""
    made, timm = of_timm("vit_tiny_patch16_224", config=False, num_classes=0), import_library("timm")
    decoder = {"mask_token": (1, 1, 32), "decoder_pos_embed": (1, 17, 32), "decoder_embed.weight": (32, 64)}
    decoder |= {"decoder_embed.bias": (32,), "decoder_pred.weight": (192, 32), "decoder_pred.bias": (192,)}

    def answer(images: Tensor) -> Tensor:
        size = tuple(images.shape[2:])
        sizes = {"embed_dim": 64, "depth": 2, "num_heads": 2, "num_classes": 0, "patch_size": 8}
        model = timm.create_model("vit_tiny_patch16_224", img_size=size, **sizes).eval()
        positions = made.tensors["pos_embed"]
        grid = positions[:, 1:].reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
        # As `interpolate_pos_embed` of MAE's `util/pos_embed.py`.
        resized = F.interpolate(grid, size=(size[0] // 8, size[1] // 8), mode="bicubic", align_corners=False)
        placed = torch.cat([positions[:, :1], resized.flatten(2).transpose(1, 2)], dim=1)
        model.load_state_dict({**made.tensors, "pos_embed": placed})
        return model(images)  # type: ignore[no-any-return]

    return Made("weights.pth", {**made.tensors, **drawn(decoder)}, answer, num_heads=2)


IN_MEMORY = ("dinov2, SwiGLU", "dinov3_vit", "vit_mae", "vit, classifier", "deit", "beit")
"""Models whose modules have other names in memory than in files."""
TIMM_PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mean, then the norm": {"global_pool": "avg"},
    "mean beside a class token": {"global_pool": "avg", "fc_norm": False},
    "maximum": {"global_pool": "max", "class_token": False},
    "norm after the class token": {"fc_norm": True},
    "QK-norm": {"qk_norm": True},
    "RMSNorm": {"norm_layer": "rmsnorm"},
    "QK-norm by RMSNorm": {"norm_layer": "rmsnorm", "qk_norm": True},
}
MAKERS: dict[str, Callable[[], Made]] = {
    **{name: partial(of_transformers, peer) for name, peer in PEERS.items()},
    **{
        f"{name}, names in memory": partial(of_transformers, replace(PEERS[name], modules=True))
        for name in IN_MEMORY
    },
    "timm, DINOv2 giant": lambda: of_timm("vit_giant_patch14_dinov2", mlp_ratio=4),
    "timm, DINOv3 S+": lambda: of_timm("vit_small_plus_patch16_dinov3"),
    "timm, EVA-02 S": lambda: of_timm("eva02_small_patch14_224"),
    "timm, EVA-02 B": lambda: of_timm("eva02_base_patch14_224"),
    "timm, EVA g": lambda: of_timm("eva_giant_patch14_224"),
    "timm, BEiT v2": lambda: of_timm("beitv2_base_patch16_224"),
    "timm, Perception Encoder": lambda: of_timm("vit_pe_core_base_patch16_224", num_heads=8),
    "timm, Perception Encoder, spatial": lambda: of_timm("vit_pe_spatial_base_patch16_512"),
    "timm, no final norm": lambda: of_timm("vit_base_patch16_224", final_norm=False),
    "timm, DeiT III": lambda: of_timm("deit3_small_patch16_224"),
    "timm, DINOv2 with registers": lambda: of_timm("vit_small_patch14_reg4_dinov2"),
    "timm, CLIP": lambda: of_timm("vit_base_patch32_clip_224"),
    "timm, SigLIP": lambda: of_timm("vit_base_patch16_siglip_224"),
    "timm, CLIP of OpenAI": lambda: of_timm("vit_base_patch32_clip_quickgelu_224"),
    "timm, DINOv3": lambda: of_timm("vit_small_patch16_dinov3", global_pool="avg"),
    "timm, DINOv3 with biases": lambda: of_timm("vit_small_patch16_dinov3_qkvb"),
    "timm, EVA-02 with a register": lambda: of_timm("vit_base_patch16_rope_reg1_gap_256"),
    "timm, RoPE-ViT": lambda: of_timm("vit_small_patch16_rope_224"),
    "timm, RoPE-ViT with positions": lambda: of_timm("vit_base_patch16_rope_ape_224"),
    **{
        f"timm, {name}": partial(of_timm, "vit_base_patch16_224", **arguments)
        for name, arguments in TIMM_PARTS.items()
    },
    "open_clip": of_open_clip,
    "open_clip, quick GELU": lambda: of_open_clip(quick=True),
    "open_clip, mean and layer scale": lambda: of_open_clip(
        pool_type="avg", ls_init_value=0.1, final_ln_after_pool=True, no_ln_pre=True
    ),
    "MAE": of_mae,
}
DINOV2: dict[str, Callable[[], Made]] = {
    "DINOv2": of_dinov2,
    "DINOv2, registers": lambda: of_dinov2(
        num_register_tokens=4, interpolate_antialias=True, interpolate_offset=0.0
    ),
    "DINOv2, SwiGLU": lambda: of_dinov2(ffn_layer="swiglufused"),
}


def image_of(size: Size) -> Tensor:
    """Draw three normalised images `(3, 3, H, W)`."""
    return fixed_tensor(f"images of {size}", (3, 3, *size), 1.0)


def write_files(made: Any, folder: Path) -> Path:
    """Write a file with its settings, and return the path that is loaded."""
    for name, settings in made.settings.items():
        (folder / name).write_text(json.dumps(settings))
    if made.file.endswith(".pth"):
        torch.save(dict(made.tensors), folder / made.file)
    else:
        save_file(dict(made.tensors), folder / made.file, {"format": "pt"})
    path: Path = folder / made.file
    return path


def outputs(made: Any) -> Iterator[tuple[Size, Tensor]]:
    """Yield what a file computes here, at each size."""
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = write_files(made, Path(folder))
        for size in SIZES:
            model = load(path, LoadOptions(image_size=size, num_heads=made.num_heads)).model
            yield size, model(image_of(size))


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    logging.getLogger("vitkit").setLevel(logging.ERROR)
    transformers()
    makers = dict(MAKERS)
    if clone := next((argument for argument in arguments if Path(argument).is_dir()), None):
        sys.path.insert(0, clone)
        makers |= DINOV2
    names = [argument for argument in arguments if argument not in ("--write", clone)]
    arrays: dict[str, Any] = {}
    worst = 0.0
    print("| model | " + " | ".join(f"{rows}x{columns}" for rows, columns in SIZES) + " |")
    print("| --- |" + " --- |" * len(SIZES))
    for name, make in makers.items():
        if names and not any(name.startswith(start) for start in names):
            continue
        made, differences = make(), []
        shapes = {key: tuple(tensor.shape) for key, tensor in made.tensors.items()}
        description = {
            "file": made.file,
            "settings": made.settings,
            "num_heads": made.num_heads,
            "shapes": shapes,
        }
        arrays[f"{name}/file"] = json.dumps(description)
        for size, actual in outputs(made):
            with torch.no_grad():
                expected = made.answer(image_of(size))
            assert actual.shape == expected.shape, (name, actual.shape, expected.shape)
            differences.append(float((actual - expected).abs().max() / expected.abs().max()))
            arrays[f"{name}/{size[0]}x{size[1]}"] = expected.numpy()
        worst = max(worst, *differences)
        print(f"| {name} | " + " | ".join(f"{value:.1e}" for value in differences) + " |", flush=True)
    print(f"largest: {worst:.1e} of the largest value, allowed {ALLOWED:.0e}")
    if clone is None:
        print("DINOv2's own code is left out: give a clone of github.com/facebookresearch/dinov2.")
    elif "--write" in arguments and not names:
        np.savez_compressed(NUMBERS, **arrays)
    return int(not worst <= ALLOWED)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
