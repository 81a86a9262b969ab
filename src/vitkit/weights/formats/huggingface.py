"""Folders of Hugging Face's transformers, read and written: ViT and BiT.

Parameters have the names that every release of transformers writes to files; the names that its modules have
had since release 5 are read too. Transformers' `from_pretrained` loads the written folders.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, by the fields of transformers with its own defaults, the arrays give the
shapes, `preprocessor_config.json` gives the pixels.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitkit.config import to_json
from vitkit.data.config import Interpolation, Preprocessing, Resize
from vitkit.errors import VitkitError
from vitkit.models.config import Card, Gelu, ModelConfig, ResNetConfig, Task, ViTConfig, height_and_width
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size
from vitkit.weights import model_card, table
from vitkit.weights.files.source import LARGEST, Source, read_fields, write_folder
from vitkit.weights.formats.official import absent_from_libraries, with_channels

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
    fields = {key: value for key, value in source.preprocessor.items() if value is not None}
    named = fields.get("image_processor_type") or fields.get("feature_extractor_type") or ""
    if not isinstance(named, str):
        raise VitkitError(f"{_where(source)}: image_processor_type: expected str, found {named!r}.")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", named)
    fields = {**DEFAULTS.get(kind, {}), **fields, "image_processor_type": kind}
    by_model = {"bit": "Bit", "deit": "DeiT"}.get(str(source.config.get("model_type")), "ViT")
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


def compact_size(size: tuple[int, int]) -> int | tuple[int, int]:
    """Write the size of a square as a single number, as transformers does."""
    return size[0] if size[0] == size[1] else size


GELU: dict[str, Gelu] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
    "quick_gelu": "quick",
}
"""Transformers' names of the forms of GELU (`activations.py`)."""


NAMES = {
    "layers": ("encoder.layer", "layers"),
    "query": ("attention.attention.query", "attention.q_proj"),
    "key": ("attention.attention.key", "attention.k_proj"),
    "value": ("attention.attention.value", "attention.v_proj"),
    "out": ("attention.output.dense", "attention.o_proj"),
    "fc1": ("intermediate.dense", "mlp.fc1"),
    "fc2": ("output.dense", "mlp.fc2"),
}
"""The names in an encoder layer that differ between files and the modules of release 5."""
FILES, MODULES = ({part: names[column] for part, names in NAMES.items()} for column in (0, 1))


IN_TIMM = ("dinov2", "dinov3_vit", "siglip", "clip")
"""Beginnings of the names of models whose weights are refused in this format and read in timm's."""


def recognises(source: Source) -> bool:
    """Recognise the format by the names of the arrays, or by a `config.json` of transformers beside them."""
    theirs = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
    return any(key.endswith(theirs) for key in source.shapes) or (
        {"model_type", "transformers_version"} <= source.config.keys()
    )


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model that `config.json` and the arrays describe.

    Raises:
        VitkitError: no `config.json`, a kind of model that is not ours, or a part of it that we do not have.
    """
    if not source.config:
        raise VitkitError(
            f"{source.path} has the names of Hugging Face, which do not say everything: put the config.json "
            "(and the preprocessor_config.json) that came with it beside it."
        )
    if (kind := source.config.get("model_type")) in ("vit", "deit"):
        return _read_vit(source, hints)
    if kind == "bit":
        return read_bit(source, hints)
    if kind == "vit-hybrid":
        raise VitkitError(
            f"{source.path}: hybrids of Hugging Face ('vit-hybrid') are not read: load the same weights "
            "from the original release's .npz, R50+ViT-B_16 say, or from timm's file."
        )
    in_timm = " timm's file of the same weights is read, if no MLP is gated (SwiGLU): give hf:timm/NAME."
    hint = in_timm if str(kind).startswith(IN_TIMM) else ""
    raise VitkitError(f"{source.path}: of Hugging Face's models, vit and bit are read, found {kind!r}.{hint}")


def _read_vit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(ViTSettings, source.config, str(source.path.with_name("config.json")))
    shapes = source.shapes
    prefix = prefix_of(source, "embeddings.cls_token")
    classes = table.first_axis(source, "classifier.weight", 2)
    pooler = f"{prefix}pooler.dense.weight"
    naming = MODULES if f"{prefix}layers.0.{MODULES['fc1']}.weight" in shapes else FILES
    stem = f"{prefix}embeddings.patch_embeddings.projection.weight"
    fc1 = f"{prefix}{naming['layers']}.0.{naming['fc1']}.weight"
    if missing := [key for key in (stem, fc1) if key not in shapes]:
        raise VitkitError(f"{source.path} holds no whole ViT: absent: {', '.join(missing)}.")
    table.check_axes(source, stem, 4)
    width, in_channels, patch_height, patch_width = shapes[stem]
    given = settings.num_attention_heads or hints.num_heads
    heads = table.require_heads(source, given, width, ", nor does config.json")
    head_dim = source.config.get("head_dim")
    refuse(
        source,
        {
            f"a distillation token ({prefix}embeddings.distillation_token)": (
                f"{prefix}embeddings.distillation_token" in source
            ),
            "queries, keys and values without bias (qkv_bias false)": not settings.qkv_bias,
            f"the activation {settings.hidden_act}": settings.hidden_act not in GELU,
            f"a pooler with the activation {settings.pooler_act}": (
                not classes and pooler in source and settings.pooler_act != "tanh"
            ),
            f"heads of {head_dim} values (head_dim)": head_dim not in (None, width // heads),
        },
    )
    processor, mean, std = read_pixels(source, in_channels)
    config = ViTConfig(
        image_size=height_and_width(settings.image_size),
        patch_size=(patch_height, patch_width),
        width=width,
        depth=table.count_layers(source, re.escape(f"{prefix}{naming['layers']}.") + r"(\d+)\."),
        num_heads=heads,
        mlp_dim=table.first_axis(source, fc1, 2),
        num_classes=classes,
        in_channels=in_channels,
        representation_size=None if classes else table.first_axis(source, pooler, 2) or None,
        dropout=settings.hidden_dropout_prob,
        attention_dropout=settings.attention_probs_dropout_prob,
        gelu=GELU[settings.hidden_act],
        norm_eps=settings.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    card = make_card(source, settings, processor, config)
    masked = "of masked image modelling, which nothing here uses"
    ignored = {f"{prefix}embeddings.mask_token": f"the mask token {masked}"}
    ignored |= {f"decoder.0.{part}": f"the decoder {masked}" for part in ("weight", "bias")}
    if classes:
        unused = "a pooler beside a classifier, which does not look at it"
        ignored |= {f"{prefix}pooler.dense.{part}": unused for part in ("weight", "bias")}
    return table.Translation(config, vit_rows(config, prefix, naming), card, ignored)


def read_bit(source: Source, hints: table.Hints) -> table.Translation:
    settings = read_fields(BitSettings, source.config, str(source.path.with_name("config.json")))
    prefix = prefix_of(source, "embedder.convolution.weight")
    stages = len(settings.depths)
    if settings.depths and (min(settings.depths) < 1 or sum(settings.depths) > len(source.shapes)):
        raise VitkitError(
            f"{source.path}: config.json gives depths {settings.depths}. Expected at least one unit in each "
            "stage, and in all not more than its arrays can hold."
        )
    refuse(
        source,
        {
            f"layers of the kind {settings.layer_type}": settings.layer_type != "preactivation",
            f"the activation {settings.hidden_act}": settings.hidden_act != "relu",
            f"padding {settings.global_padding}": settings.global_padding is not None,
            "dynamically padded max pooling (embedding_dynamic_padding)": settings.embedding_dynamic_padding,
            f"hidden_sizes {settings.hidden_sizes} for {stages} stages": len(settings.hidden_sizes) != stages,
            f"num_groups {settings.num_groups}, below 1": settings.num_groups < 1,
            f"an output_stride of {settings.output_stride}, which dilates": settings.output_stride
            < 2 ** (stages + 1),
            f"a width_factor of {settings.width_factor} (transformers builds only 1)": (
                settings.width_factor != 1
            ),
        },
    )
    if rate := settings.drop_path_rate:
        source.notes.append(f"trained with drop_path_rate {rate}, which is not here; predictions have none")
    processor, mean, std = read_pixels(source, settings.num_channels)
    size = size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    if size is None:
        raise table.NotRecordedError(
            f"{source.path}: nothing here says the size of the images: give image_size=(height, width), "
            "224x224 usually, or put preprocessor_config.json beside the weights."
        )
    classes = table.first_axis(source, "classifier.1.weight", 2)
    config = ResNetConfig(
        image_size=size,
        layers=settings.depths,
        root_width=settings.embedding_size,
        stage_widths=settings.hidden_sizes,
        groups=settings.num_groups,
        in_channels=settings.num_channels,
        max_pool_padding="zeros",
        num_classes=classes,
        norm_eps=BIT_NORM_EPS,
        standardization_eps=BIT_STANDARDIZATION_EPS,
        image_mean=mean,
        image_std=std,
    )
    config = with_channels(config, settings.embedding_size, settings.hidden_sizes)
    refuse(source, dict.fromkeys(absent_from_libraries(config), True))
    card = make_card(source, settings, processor, config)
    return table.Translation(config, bit_rows(config, prefix), card)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write the folder that `from_pretrained` reads: weights, `config.json` and `preprocessor_config.json`.

    A `ViTForImageClassification` or `BitForImageClassification`; without a head a `BitModel` or a `ViTModel`,
    whose pooler is our tanh layer (where there is none:
    `ViTModel.from_pretrained(path, add_pooling_layer=False)`).

    Raises:
        VitkitError: a model of ours is at `path`.
    """
    config, settings = model.config, _settings(model.config, model.card)
    prefix = f"{settings.model_type}." if config.num_classes else ""
    rows = bit_rows(config, prefix) if settings.model_type == "bit" else vit_rows(config, prefix, FILES)
    return write_folder(
        path,
        table.to_file_tensors(model.state_dict(), rows),
        {"config.json": to_json(settings), "preprocessor_config.json": write_processor(model, notes)},
        metadata={"format": "pt"},
    )


def _unsupported_vit(config: ViTConfig) -> Iterator[str]:
    """Name the parts of a ViT that transformers cannot build; its hybrid is retired."""
    yield from table.unsupported_values(config, table.PLAIN)
    if config.representation_size and config.num_classes:
        yield "a tanh layer before the head (load with head='new' to drop it)"


def _lost_of_a_vit(config: ViTConfig) -> list[str]:
    """Name the numerics that transformers' ViT fixes and ours does not."""
    phrases = ["dropout after the GELU, which they do not apply"] if config.dropout else []
    if config.drop_path:
        phrases.append(f"stochastic depth {config.drop_path:g}, which training alone uses")
    return phrases


def _lost_of_a_bit(config: ResNetConfig) -> list[str]:
    """Name the numerics that transformers' BiT fixes and ours does not."""
    return table.differences(
        "theirs",
        ("a GroupNorm epsilon of", config.norm_eps, BIT_NORM_EPS),
        ("a weight standardisation epsilon of", config.standardization_eps, BIT_STANDARDIZATION_EPS),
        ("max-pooling padded with", config.max_pool_padding, "zeros"),
    )


def _settings(config: Any, card: Card) -> ViTSettings | BitSettings:
    """Write a configuration as transformers' `config.json`."""
    names = card.class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    family = {"ViT": "ViT", "ResNet": "Bit"}[config.family]
    shared: dict[str, Any] = {
        "architectures": (f"{family}ForImageClassification" if config.num_classes else f"{family}Model",),
        "problem_type": SIGMOID if card.loss == "sigmoid" else None,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "num_channels": config.in_channels,
    }
    if family == "Bit":
        return BitSettings(
            **shared,
            output_stride=max(32, 2 ** (len(config.layers) + 1)),
            embedding_size=config.root_channels,
            hidden_sizes=config.stage_channels,
            num_groups=config.groups,
            depths=config.layers,
        )
    return ViTSettings(
        **shared,
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        image_size=compact_size(config.image_size),
        patch_size=compact_size(config.patch_size),
        hidden_act={"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}[config.gelu],
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
    )


HOLDINGS = {
    "ViT": table.Holding(write, _unsupported_vit, _lost_of_a_vit),
    "ResNet": table.Holding(write, absent_from_libraries, _lost_of_a_bit),
}


CHECKPOINT_FORMAT = table.CheckpointFormat("huggingface", recognises, read, HOLDINGS)


def vit_rows(config: ViTConfig, prefix: str, naming: Mapping[str, str]) -> list[table.Row]:
    """List every parameter of a ViT with its name in Hugging Face transformers."""
    rows = [
        *table.weight_and_bias("stem", f"{prefix}embeddings.patch_embeddings.projection"),
        table.renamed("class_token", f"{prefix}embeddings.cls_token"),
        table.renamed("positions.0.embedding", f"{prefix}embeddings.position_embeddings"),
    ]
    parts = (naming["query"], naming["key"], naming["value"])
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{prefix}{naming['layers']}.{i}"
        rows += table.weight_and_bias(f"{ours}.norm1", f"{theirs}.layernorm_before")
        for kind in ("weight", "bias"):
            names = (f"{theirs}.{part}.{kind}" for part in parts)
            rows.append(table.stacked(f"{ours}.attention.qkv.{kind}", names))
        rows += table.weight_and_bias(f"{ours}.attention.out", f"{theirs}.{naming['out']}")
        rows += table.weight_and_bias(f"{ours}.norm2", f"{theirs}.layernorm_after")
        rows += table.weight_and_bias(f"{ours}.mlp.fc1", f"{theirs}.{naming['fc1']}")
        rows += table.weight_and_bias(f"{ours}.mlp.fc2", f"{theirs}.{naming['fc2']}")
    rows += table.weight_and_bias("norm", f"{prefix}layernorm")
    if config.representation_size:
        rows += table.weight_and_bias("pre_logits", f"{prefix}pooler.dense")
    if config.num_classes:
        rows += table.weight_and_bias("head", "classifier")
    return rows


def bit_rows(config: ResNetConfig, prefix: str) -> list[table.Row]:
    """List every parameter of a BiT ResNet with its name in Hugging Face transformers."""
    rows = [table.renamed("root.weight", f"{prefix}embedder.convolution.weight")]
    for s, units in enumerate(config.layers):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.stages.{s}.layers.{u}"
            for number in (1, 2, 3):
                rows += table.weight_and_bias(f"{ours}.norm{number}", f"{theirs}.norm{number}")
                rows.append(table.renamed(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
            if u == 0:
                rows.append(table.renamed(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
    rows += table.weight_and_bias("norm", f"{prefix}norm")
    if config.num_classes:
        rows += table.weight_and_bias("head", "classifier.1")
    return rows


def refuse(source: Source, features: Mapping[str, bool]) -> None:
    if parts := [part for part, is_there in features.items() if is_there]:
        raise VitkitError(f"{source.path} has what no model of ours has: {'; '.join(parts)}.")


def prefix_of(source: Source, key: str) -> str:
    """Return the prefix of the trunk's names: "vit." under a classifier, nothing in a trunk alone."""
    if not (names := [name for name in source.shapes if name.endswith(key)]):
        kind = source.config["model_type"]
        raise VitkitError(f"{source.path}: its config.json says {kind}, but no {key} is there.")
    return names[0].removesuffix(key)


def make_card(
    source: Source, settings: ViTSettings | BitSettings, processor: Processor, config: ModelConfig
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
    if processor.do_normalize and not {"image_mean", "image_std"} <= source.preprocessor.keys():
        custom = "the default of their image processor"
        assumed.append(model_card.assumed_statistics(config.image_mean, config.image_std, custom))
    if not source.preprocessor:
        assumed.append(model_card.assumed_resizing(rule, "as their ViTImageProcessor does"))
    return model_card.ModelCard(
        class_names=names,
        task=task,
        position_interpolation="huggingface",
        preprocessing=rule,
        assumed=tuple(assumed),
    )
