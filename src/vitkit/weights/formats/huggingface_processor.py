"""The image processor of transformers, and what its `config.json` says of logits, of every family alike.

They become pixel statistics, preprocessing and card.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitkit.data.config import Interpolation, Preprocessing, Resize
from vitkit.errors import VitkitError
from vitkit.models import config as models
from vitkit.models.config import ModelConfig, Task
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size
from vitkit.weights import model_card, table
from vitkit.weights.files.source import LARGEST, Source, read_fields

SIGMOID = "multi_label_classification"
"""Transformers' `problem_type` where every class is a yes or no of its own."""


@dataclass(frozen=True)
class ModelSettings:
    """The fields of every model's `config.json`: its class, and the meaning of its logits."""

    architectures: tuple[str, ...] = ()
    problem_type: str | None = None
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


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
    "image_mean": list(table.CLIP_MEAN),
    "image_std": list(table.CLIP_STD),
}
IMAGENET = {"image_mean": list(table.IMAGENET_MEAN), "image_std": list(table.IMAGENET_STD)}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ViT": {},
    "Siglip": {"resample": 3},
    "Beit": {"resample": 3},
    "DINOv3ViT": IMAGENET,
    "DeiT": {"size": 256, **CROPPED},
    "Bit": CLIP,
    "CLIP": CLIP,
}
"""Defaults by the first word of `image_processor_type`, where they differ from ViT's processor."""
OF_MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bit": ("Bit", {}),
    "deit": ("DeiT", {}),
    "beit": ("Beit", {}),
    "vit_mae": ("ViT", {"resample": 3, **IMAGENET}),
    "ijepa": ("ViT", IMAGENET),
    "dinov2": ("Bit", {"size": 256, **IMAGENET}),
    "dinov2_with_registers": ("Bit", {"size": 256, **IMAGENET}),
    "dinov3_vit": ("DINOv3ViT", {}),
    "siglip": ("Siglip", {}),
    "clip": ("CLIP", {}),
    "metaclip_2": ("CLIP", {}),
}
"""The processor of each `model_type`, and what its files on the hub say, for folders without one."""
SHORTEST_EDGE = ("Bit", "CLIP")
"""Processors that take a size of one number for the shortest edge; the others take it for a square."""


def model_type(source: Source) -> str:
    """Return the `model_type` of `config.json`, without the ending of a tower that is stored alone."""
    return str(source.config.get("model_type")).removesuffix("_vision_model")


def processor_of(source: Source) -> Processor:
    """Read `preprocessor_config.json`, with the defaults of the processor that it names.

    A size of one number is written out, as that processor understands it.
    """
    fields = {key: value for key, value in source.preprocessor.items() if value is not None}
    named = fields.get("image_processor_type") or fields.get("feature_extractor_type") or ""
    if not isinstance(named, str):
        raise VitkitError(f"{_where(source)}: image_processor_type: expected str, found {named!r}.")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named)
    fields = {**DEFAULTS.get(kind, {}), **fields, "image_processor_type": kind}
    by_model, of_model = OF_MODELS.get(model_type(source), ("ViT", {}))
    if not source.preprocessor:
        fields = {**DEFAULTS[by_model], **of_model, "image_processor_type": ""}
    if (kind or by_model) in SHORTEST_EDGE and isinstance(fields.get("size"), int):
        fields["size"] = {"shortest_edge": fields["size"]}
    return read_fields(Processor, fields, str(_where(source)))


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
        fraction = model_card.fraction_of(cropped[0], resized[0])
        rule = Preprocessing(size, way, fraction, interpolation=kind, crop_offset="down")
        if cropped != size:
            differences.append(f"a crop of {format_size(cropped)} (here: {format_size(size)})")
        elif (ours := (rule.resized(0), rule.resized(1))) != resized:
            what, side = ("the shortest side", resized[0]) if edge else ("images", format_size(resized))
            differences.append(f"{what} resized to {side} (here: {format_size(ours)})")
    if processor.image_processor_type not in ("", *DEFAULTS):
        differences.append(
            f"the processor of {processor.image_processor_type}, which is not known here (read as ViT's)"
        )
    if differences:
        source.notes.append(f"its images were prepared with {'; '.join(differences)}")
    return rule


def write_processor(model: ImageModel, notes: list[str]) -> dict[str, Any]:
    """Write a model's preprocessing as `preprocessor_config.json`, as nearly as it can; note differences."""
    config, rule = model.config, model_card.preprocessing_of(model)
    (rows, columns), way, fraction = rule.image_size, rule.resize, rule.crop_fraction
    theirs = Preprocessing((rows, columns), interpolation=rule.interpolation)
    if way in ("crop", "shortest") and rows == columns:
        way, fraction = "shortest", model_card.fraction_of(rows, rule.resized(0))
    if way in ("squash", "none") or (way == "shortest" and rows == columns):
        theirs = replace(theirs, resize=way, crop_fraction=fraction, crop_offset="down")
    notes += model_card.changed_pixels_noted(model, theirs, "preprocessor_config.json")
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


def size_of(source: Source, processor: Processor, name: str) -> tuple[int, int] | None:
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


def refuse(source: Source, features: Mapping[str, bool]) -> None:
    if parts := [part for part, is_there in features.items() if is_there]:
        raise VitkitError(f"{source.path} has what no model of ours has: {'; '.join(parts)}.")


def prefix_of(source: Source, key: str) -> str:
    """Return the prefix of the trunk's names: "vit." under a classifier, nothing in a trunk alone."""
    if not (names := [name for name in source.shapes if re.fullmatch(rf"[\w.-]*{re.escape(key)}", name)]):
        kind = source.config["model_type"]
        raise VitkitError(f"{source.path}: its config.json says {kind}, but no {key} is there.")
    return names[0].removesuffix(key)


def make_card(
    source: Source,
    settings: ModelSettings,
    processor: Processor,
    config: ModelConfig,
    interpolation: models.Interpolation = "huggingface",
) -> model_card.ModelCard:
    classes, labels, names = config.num_classes, settings.id2label, tuple[str, ...]()
    if classes and labels and any(name != f"LABEL_{i}" for i, name in labels.items()):
        if set(labels) != {str(i) for i in range(classes)}:
            raise VitkitError(
                f"{source.path}: id2label in config.json has {len(labels)} names for {classes} classes."
            )
        names = tuple(str(labels[str(i)]) for i in range(classes))
    task = Task(loss="sigmoid") if settings.problem_type == SIGMOID else None
    rule = read_rule(source, processor, config.image_size)
    assumed = list[model_card.Assumption]()
    own, of_model = OF_MODELS.get(model_type(source), ("ViT", {}))
    if processor.do_normalize and not {"image_mean", "image_std"} <= source.preprocessor.keys():
        said = "what their files on the hub say" if of_model else "the default of their image processor"
        assumed.append(model_card.assumed_statistics(config.image_mean, config.image_std, said))
    if not source.preprocessor:
        assumed.append(model_card.assumed_resizing(rule, f"as their {own}ImageProcessor does"))
    return model_card.ModelCard(
        class_names=names,
        task=task,
        position_interpolation=interpolation,
        preprocessing=rule,
        assumed=tuple(assumed),
    )
