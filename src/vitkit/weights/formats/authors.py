"""Files of other authors, read and not written: DINO's, DINOv2's, Franca's, MAE's, open_clip's.

The first have timm's names, but for a few, or behind a prefix; DINO's and MAE's encoders alone have just
these, and are read as timm's. open_clip keeps a tower for images under `visual.`, beside one for texts, which
is left aside, and says in `open_clip_config.json` what the tensors do not.

Facts: github.com/facebookresearch/dinov2 `dinov2/models/vision_transformer.py` and `layers/swiglu_ffn.py`;
github.com/facebookresearch/mae `models_mae.py`; open_clip 3.3 `model.py`, `transformer.py`, `transform.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vitkit.data.config import Interpolation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.models import config as models
from vitkit.models.config import ViTConfig, height_and_width
from vitkit.weights import model_card, table
from vitkit.weights.files.source import Source, read_fields
from vitkit.weights.formats import timm

DINOV2_HEADS = {384: 6, 768: 12, 1024: 16, 1536: 24}
"""Heads by width, of the models that DINOv2 and Franca have."""
DINOV2 = {**timm.NAMES, "register_tokens": "register_tokens"}
DINOV2_GATED = DINOV2 | {"blocks.mlp.fc1": "blocks.#.mlp.w12", "blocks.mlp.fc2": "blocks.#.mlp.w3"}
"""The names of DINOv2, with a plain MLP and with a gated one."""


def is_dinov2(source: Source) -> bool:
    """Whether it has the names of DINOv2, whose files hold the mask token; timm leaves it out of its own."""
    names = {"mask_token", "patch_embed.proj.weight", "pos_embed", "blocks.0.ls1.gamma"}
    return names <= source.shapes.keys() and source.config.get("architecture") is None


def is_training(source: Source) -> bool:
    """Whether it is a checkpoint of DINO's or DINOv2's training: a backbone beside its projection heads."""
    heads = [key for key in source.shapes if not key.startswith("backbone.")]
    return "backbone.patch_embed.proj.weight" in source and bool(heads) and all(map(HEADS.match, heads))


HEADS = re.compile(r"(dino_head|ibot_head|head)\.(mlp|last_layer)\.")
"""The beginnings of names of DINO's projection heads."""


def is_mae(source: Source) -> bool:
    """Whether it is an encoder of MAE with its decoder."""
    return {"decoder_embed.weight", "patch_embed.proj.weight", "pos_embed"} <= source.shapes.keys()


def is_open_clip(source: Source) -> bool:
    return "visual.conv1.weight" in source or any(key.startswith("visual.trunk.") for key in source.shapes)


def recognises(source: Source) -> bool:
    return any(kind(source) for kind in (is_dinov2, is_training, is_mae, is_open_clip))


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model of a file.

    Raises:
        VitkitError: it has a part that models here have not.
        NotRecordedError: the number of heads or the image size is neither usual nor given, or nothing says
            what open_clip's tensors do not.
    """
    if is_open_clip(source):
        return _read_open_clip(source, hints)
    if is_training(source):
        return _read_training(source, hints)
    return _read_dinov2(source, hints) if is_dinov2(source) else _read_mae(source, hints)


def _read_training(source: Source, hints: table.Hints) -> table.Translation:
    names = {key.removeprefix("backbone."): key for key in source.shapes if key.startswith("backbone.")}
    backbone = source.renamed(names)
    if is_dinov2(backbone):
        read = _read_dinov2(backbone, hints)
    else:
        read = _with_own_images(timm.read(backbone, hints), "dinov2", "DINO's")
    heads = source.shapes.keys() - names.values()
    ignored = dict.fromkeys(heads, "the projection head of the training, which nothing here uses")
    ignored |= {f"backbone.{key}": reason for key, reason in read.ignored.items()}
    return replace(read, source=backbone, ignored={**read.ignored, **ignored})


def _read_dinov2(source: Source, hints: table.Hints) -> table.Translation:
    gated = "blocks.0.mlp.w3.weight" in source
    names = DINOV2_GATED if gated else DINOV2
    sizes = table.read_sizes(source, names)
    width, channels = sizes["width"], sizes["in_channels"]
    registers = table.count_tokens(source, "register_tokens")
    # Of the tokens before the patches the class token alone has a position.
    count = table.count_tokens(source, "pos_embed")
    size, _ = table.image_size_of(source, sizes["patch_size"], count, hints.image_size, prefix=1)
    config = ViTConfig(
        **sizes,
        image_size=size,
        num_heads=table.require_heads(source, hints.num_heads or DINOV2_HEADS.get(width), width),
        num_classes=0,
        register_tokens=registers,
        class_token_position=not registers,
        mlp="swiglu" if gated else "gelu",
        layer_scale=timm.LAYER_SCALE,
        gelu="erf",
        norm_eps=timm.NORM_EPS,
        image_mean=table.by_channel(table.IMAGENET_MEAN, channels),
        image_std=table.by_channel(table.IMAGENET_STD, channels),
    )
    placed = table.folded_position("cls_token", "pos_embed") if registers else []
    rows = table.named_rows(config, names, special=placed)
    # Models with registers resize positions antialiased, those without by the rule of DINO
    # (`dinov2/hub/backbones.py`).
    card = _card(config, "timm" if registers else "dinov2", "DINOv2's")
    return table.Translation(config, rows, card, table.left_out(source, rows))


def _read_mae(source: Source, hints: table.Hints) -> table.Translation:
    aside = [key for key in source.shapes if key.startswith("decoder_") or key == "mask_token"]
    encoder = source.renamed({key: key for key in source.shapes if key not in aside})
    # `interpolate_pos_embed` of `util/pos_embed.py` is bicubic without antialiasing, as transformers is.
    read = _with_own_images(timm.read(encoder, hints), "huggingface", "MAE's")
    return replace(read, ignored=table.left_out(source, read.rows, table.OF_WHOLE_MODELS))


def _with_own_images(read: table.Translation, rule: models.Interpolation, whose: str) -> table.Translation:
    """Give what was read as timm's without a config.json the images and the rule of its authors."""
    vit: Any = read.config  # of a file with patches
    channels = vit.in_channels
    config = replace(
        vit,
        image_mean=table.by_channel(table.IMAGENET_MEAN, channels),
        image_std=table.by_channel(table.IMAGENET_STD, channels),
    )
    return replace(read, config=config, card=_card(config, rule, whose))


def _card(config: ViTConfig, rule: models.Interpolation, whose: str) -> model_card.ModelCard:
    """Make the card of a state dict alone: all these authors evaluate the middle of images, bicubically."""
    preprocessing = Preprocessing(config.image_size, "shortest", 0.875, interpolation="bicubic")
    return model_card.card_of_state_dict(config, preprocessing, whose, rule)


OPEN_CLIP_CONFIG = "open_clip_config.json"


@dataclass(frozen=True)
class VisionFields:
    """The fields of `vision_cfg` that are read, with open_clip's defaults."""

    width: int = 768
    head_width: int = 64
    image_size: int | tuple[int, int] = 224
    ls_init_value: float | None = None
    final_ln_after_pool: bool = False
    pool_type: Literal["tok", "avg", "none"] = "tok"
    norm_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PixelFields:
    """The fields of `preprocess_cfg`, with open_clip's defaults."""

    mean: tuple[float, ...] = table.CLIP_MEAN
    std: tuple[float, ...] = table.CLIP_STD
    interpolation: Interpolation = "bicubic"
    resize_mode: Literal["shortest", "longest", "squash"] = "shortest"


HARMLESS = {"layers", "patch_size", "mlp_ratio", "patch_dropout", "output_tokens", "pos_embed_type"}
"""Fields of `vision_cfg` that the tensors show, or that act in training alone."""
UNUSED = {"attn_pooler_queries", "attn_pooler_heads", "block_type"}
"""Fields that mean something beside others alone, which are refused."""
POOLS: dict[str, Any] = {"tok": "token", "avg": "mean", "none": "none"}


def _read_open_clip(source: Source, hints: table.Hints) -> table.Translation:
    where = source.path.with_name(OPEN_CLIP_CONFIG)
    if any(key.startswith("visual.trunk.") for key in source.shapes):
        raise VitkitError(
            f"{source.path}: open_clip's towers that are models of timm (visual.trunk) are not read: the "
            "same weights in timm's layout are, as hf:timm/NAME."
        )
    described = source.read_beside(OPEN_CLIP_CONFIG)
    model = described.get("model_cfg", described)
    if not isinstance(model, dict) or not isinstance(vision := model.get("vision_cfg"), dict):
        raise table.NotRecordedError(
            f"{source.path}: the tensors of open_clip say neither the form of GELU nor the heads: put the "
            f"{OPEN_CLIP_CONFIG} that came with them beside them."
        )
    fields = read_fields(VisionFields, vision, f"{where}: vision_cfg")
    pixels = read_fields(PixelFields, described.get("preprocess_cfg") or {}, f"{where}: preprocess_cfg")
    expected = HARMLESS | UNUSED | set(vars(fields)) | {"no_ln_pre"}
    strange = {name: value for name, value in vision.items() if value and name not in expected}
    epsilon = fields.norm_kwargs.get("eps", timm.CLIP_NORM_EPS)
    if fields.norm_kwargs.keys() - {"eps"} or not isinstance(epsilon, float):
        strange["norm_kwargs"] = dict(fields.norm_kwargs)
    if strange:
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(strange.items()))
        raise VitkitError(f"{where}: vision_cfg asks for what models here do not have: {listed}.")
    sizes = table.read_sizes(source, OPEN_CLIP)
    width = sizes["width"]
    table.check_axes(source, "visual.proj", 2)
    if fields.head_width < 1 or width % fields.head_width or fields.width != width:
        raise VitkitError(
            f"{where}: vision_cfg says heads of {fields.head_width} of a width of {fields.width}, and the "
            f"tensors have a width of {width}: these two do not belong together."
        )
    pool = POOLS[fields.pool_type]
    config = ViTConfig(
        **sizes,
        image_size=height_and_width(fields.image_size),
        num_heads=width // fields.head_width,
        num_classes=source.shapes["visual.proj"][1],
        pool=pool,
        extra_class_token=pool != "token",
        layer_scale=fields.ls_init_value,
        norm_before_blocks="visual.ln_pre.weight" in source,
        norm_after_pooling=fields.final_ln_after_pool,
        gelu="quick" if model.get("quick_gelu") else "erf",
        norm_eps=epsilon,
        image_mean=pixels.mean,
        image_std=pixels.std,
    )
    rule = timm.transform(config.image_size, pixels.resize_mode, 1.0, pixels.interpolation, pixels.mean)
    # open_clip's own rule for positions is the same as timm's (`resize_pos_embed`).
    card = model_card.ModelCard(preprocessing=rule, position_interpolation="timm")
    source.notes.append(f"its {config.num_classes} outputs are CLIP's projection for comparisons with texts")
    head = [  # the projection is a bare matrix (D, K)
        table.Row("head.weight", ("visual.proj",), lambda tensors: tensors[0].T),
        table.Row("head.bias", ("visual.proj",), lambda tensors: tensors[0].new_zeros(len(tensors[0].T))),
    ]
    rows = table.named_rows(config, OPEN_CLIP, {OPEN_CLIP["stem"]}, head)
    ignored = table.left_out(source, rows, [*table.OF_WHOLE_MODELS, (r"(?!visual\.)", table.TEXTS)])
    return table.Translation(config, rows, card, ignored)


RESBLOCK = "visual.transformer.resblocks.#."
OPEN_CLIP: table.Names = {
    "stem": "visual.conv1",
    "class_token": "visual.class_embedding",
    "positions.embedding": "visual.positional_embedding",
    "pre_norm": "visual.ln_pre",
    "blocks.norm1": f"{RESBLOCK}ln_1",
    "blocks.attention.qkv": f"{RESBLOCK}attn.in_proj_",
    "blocks.attention.out": f"{RESBLOCK}attn.out_proj",
    "blocks.attention_scale": f"{RESBLOCK}ls_1.gamma",
    "blocks.norm2": f"{RESBLOCK}ln_2",
    "blocks.mlp.fc1": f"{RESBLOCK}mlp.c_fc",
    "blocks.mlp.fc2": f"{RESBLOCK}mlp.c_proj",
    "blocks.mlp_scale": f"{RESBLOCK}ls_2.gamma",
    "norm": "visual.ln_post",
}
"""The parts of a ViT, and open_clip's names for them in its tower for images."""


CHECKPOINT_FORMAT = table.CheckpointFormat(
    "authors", recognises, read, {}, others=" (these files are read and not written)"
)
