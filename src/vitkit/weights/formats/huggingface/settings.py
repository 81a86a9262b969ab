"""The fields of transformers' JSON files that are read, with its own defaults, and the preprocessing among
them, read as vitkit's and written from it."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitkit.data.config import Interpolation, Preprocessing, Resize
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size
from vitkit.weights.files.source import LARGEST, Source, read_fields
from vitkit.weights.model_card import changed_pixels_noted, fraction_of, preprocessing_of

SIGMOID = "multi_label_classification"
"""Transformers' `problem_type` where every class is a yes or no of its own."""

BIT_NORM_EPS = 1e-5
BIT_STANDARDIZATION_EPS = 1e-8
"""The epsilons of all norms and convolutions; no `config.json` has them (transformers `modeling_bit.py`)."""


@dataclass(frozen=True)
class ModelSettings:
    """The fields of every model's `config.json`: its class, and the meaning of its logits."""

    architectures: tuple[str, ...] = ()
    problem_type: str | None = None
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ViTSettings(ModelSettings):
    """The fields of a ViT's `config.json`, with transformers' defaults."""

    model_type: str = "vit"
    num_attention_heads: int | None = None
    hidden_size: int = 768
    num_hidden_layers: int = 12
    intermediate_size: int = 3072
    num_channels: int = 3
    image_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-12
    hidden_dropout_prob: float = 0.0
    attention_probs_dropout_prob: float = 0.0
    qkv_bias: bool = True
    pooler_act: str = "tanh"
    pooler_output_size: int | None = None


@dataclass(frozen=True)
class BitSettings(ModelSettings):
    """The fields of a BiT ResNet's `config.json`, with transformers' defaults."""

    model_type: str = "bit"
    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: str = "preactivation"
    hidden_act: str = "relu"
    global_padding: str | None = None
    num_groups: int = 32
    drop_path_rate: float = 0.0
    embedding_dynamic_padding: bool = False
    output_stride: int = 32
    width_factor: float = 1


@dataclass(frozen=True)
class Processor:
    """The fields of a `preprocessor_config.json`, with the defaults of ViT's processor."""

    image_processor_type: str = ""
    """Its first word alone: ViT, DeiT, Bit; empty where the file does not say it."""
    do_resize: bool = True
    size: int | Mapping[str, Any] | None = None
    resample: int = 2
    do_center_crop: bool = False
    crop_size: int | Mapping[str, Any] | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | tuple[float, ...] = 0.5
    image_std: float | tuple[float, ...] = 0.5


CROPPED = {"do_center_crop": True, "crop_size": 224, "resample": 3}  # 3 is Pillow's bicubic
# With the pixel statistics of OpenAI's CLIP, which transformers has as the defaults of BiT's processor too.
CLIP = {
    **CROPPED,
    "size": {"shortest_edge": 224},
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {},
    "DeiT": {"size": 256, **CROPPED},
    "Bit": CLIP,
    "CLIP": CLIP,
}
"""Defaults by the first word of `image_processor_type`, where they differ from ViT's processor."""
SHORTEST_EDGE = ("Bit", "CLIP")
"""Processors that take a size of one number for the shortest edge; the others take it for a square."""


def processor_of(source: Source) -> Processor:
    """Read `preprocessor_config.json`, with the defaults of the processor that it names.

    A size of one number is written out, as that processor understands it.
    """
    file = "preprocessor_config.json"
    fields = {key: value for key, value in source.preprocessor.items() if value is not None}
    named = fields.get("image_processor_type") or fields.get("feature_extractor_type") or ""
    if not isinstance(named, str):
        raise VitkitError(
            f"{source.path.with_name(file)}: image_processor_type: expected str, found {named!r}."
        )
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named)
    fields = {**DEFAULTS.get(kind, {}), **fields, "image_processor_type": kind}
    by_model = {"bit": "Bit", "deit": "DeiT"}.get(str(source.config.get("model_type")), "ViT")
    if (kind or by_model) in SHORTEST_EDGE and isinstance(fields.get("size"), int):
        fields["size"] = {"shortest_edge": fields["size"]}
    return read_fields(Processor, fields, str(source.path.with_name(file)))


RESAMPLING: tuple[Interpolation, ...] = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""The filters by Pillow's numbers."""


def read_pixels(source: Source, channels: int) -> tuple[Processor, tuple[float, ...], tuple[float, ...]]:
    """Read the image processor, and the mean and std of pixels in [0, 1]."""
    processor = processor_of(source)
    # Transformers scales pixels by any factor before the mean is taken off; vitkit, by 1/255.
    if processor.do_rescale and processor.rescale_factor <= 0:
        raise VitkitError(f"{_where(source)}: rescale_factor is above 0, found {processor.rescale_factor}.")
    scale = 255 * processor.rescale_factor if processor.do_rescale else 255.0
    if math.isclose(scale, 1, rel_tol=1e-6):
        scale = 1.0
    statistics = []
    for values in (processor.image_mean, processor.image_std) if processor.do_normalize else (0.0, 1.0):
        several = (values,) if isinstance(values, float) else values
        if len(several) != channels:
            if len(set(several)) != 1:
                raise VitkitError(
                    f"{source.path}: preprocessor_config.json has the pixel statistics {list(several)} for "
                    f"images of {channels} channels: give one value for each."
                )
            several = several[:1] * channels
        statistics.append(tuple(value / scale for value in several))
    return processor, statistics[0], statistics[1]


def read_rule(source: Source, processor: Processor, size: tuple[int, int]) -> Preprocessing:
    """Translate the image processor into a preprocessing; the notes name the parts that it cannot express."""
    if not 0 <= processor.resample < len(RESAMPLING):
        filters = ", ".join(f"{number} ({name})" for number, name in enumerate(RESAMPLING))
        raise VitkitError(
            f"{_where(source)}: resample: expected one of {filters}, found {processor.resample}."
        )
    kind, resized, differences = RESAMPLING[processor.resample], size_of(source, processor, "size"), []
    edge = isinstance(processor.size, Mapping) and "shortest_edge" in processor.size
    rule = Preprocessing(size, interpolation=kind)
    if not processor.do_resize or resized is None:
        if processor.do_center_crop:
            rule = Preprocessing(size, "none", crop_offset="down")
    elif not processor.do_center_crop:
        if edge:
            differences.append("the proportions of the image (here: stretched to the model's size)")
        elif resized != size:
            differences.append(f"images of {format_size(resized)} (here: {format_size(size)})")
    else:
        cropped = size_of(source, processor, "crop_size") or size
        # Borders and offsets are transformers' with any fraction, which serves both sides of nearly all
        # models.
        way: Resize = "shortest" if edge else "squash"
        fraction = fraction_of(cropped[0], resized[0])
        rule = Preprocessing(size, way, fraction, interpolation=kind, crop_offset="down")
        if cropped != size:
            differences.append(f"a crop of {format_size(cropped)} (here: {format_size(size)})")
        elif (ours := (rule.resized(0), rule.resized(1))) != resized:
            what = (
                f"the shortest side resized to {resized[0]}"
                if edge
                else f"images resized to {format_size(resized)}"
            )
            differences.append(f"{what} (here: {format_size(ours)})")
    if processor.image_processor_type not in ("", *DEFAULTS):
        differences.append(
            f"the processor of {processor.image_processor_type}, which is not known here (read as ViT's)"
        )
    if differences:
        source.notes.append(f"its images were prepared with {'; '.join(differences)}")
    return rule


def nearest_processor(rule: Preprocessing) -> Preprocessing:
    """Return the settings of a transformers processor that come nearest to our preprocessing."""
    (rows, columns), fraction = rule.image_size, rule.crop_fraction
    kind = rule.interpolation
    if rule.resize in ("squash", "none"):
        return Preprocessing(rule.image_size, rule.resize, fraction, interpolation=kind, crop_offset="down")
    if rule.resize in ("crop", "shortest") and rows == columns:
        fraction = fraction_of(rows, rule.resized(0))
        return Preprocessing(rule.image_size, "shortest", fraction, interpolation=kind, crop_offset="down")
    return Preprocessing(rule.image_size, interpolation=kind)


def write_processor(model: ImageModel, notes: list[str]) -> dict[str, Any]:
    """Write a model's preprocessing as `preprocessor_config.json`, as nearly as it can; note differences."""
    config = model.config
    rows, columns = config.image_size
    theirs = nearest_processor(preprocessing_of(model))
    notes += changed_pixels_noted(model, theirs, "preprocessor_config.json")
    written: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": theirs.resize != "none",
        "size": {"height": rows, "width": columns},
        "resample": RESAMPLING.index(theirs.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.image_mean),
        "image_std": list(config.image_std),
    }
    if theirs.resize != "stretch":  # ViT's own processor has no central crop, BiT's has, for any model
        written |= {
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": theirs.resized(0)},
            "do_center_crop": True,
            "crop_size": {"height": rows, "width": columns},
        }
    if theirs.resize == "squash":
        written["size"] = {"height": theirs.resized(0), "width": theirs.resized(1)}
    return written


def size_of(
    source: Source, processor: Processor, name: Literal["size", "crop_size"]
) -> tuple[int, int] | None:
    """Read a size, in any of the ways that transformers writes it, as (height, width).

    Raises:
        VitkitError: a side that is no whole number from 1 to `LARGEST`.
    """
    value: Any = getattr(processor, name)
    edges = value if isinstance(value, Mapping) else {"shortest_edge": value}
    height: Any = edges.get("height")
    width: Any = edges.get("width")
    if height is None or width is None:
        height = width = edges.get("shortest_edge")
    if height is None:
        return None
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= LARGEST:
            raise VitkitError(
                f"{_where(source)}: {name}: a side is a whole number from 1 to {LARGEST}, found {value!r}."
            )
    return height, width


def _where(source: Source) -> Path:
    return source.path.with_name("preprocessor_config.json")


def compact_size(size: tuple[int, int]) -> int | tuple[int, int]:
    """Write the size of a square as a single number, as transformers does."""
    return size[0] if size[0] == size[1] else size
