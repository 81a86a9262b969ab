"""Folders of Hugging Face's transformers: ViT, DeiT without distillation, BiT, in both directions.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
The names are those that every release of transformers writes to files; the ones that its modules have had
since release 5 are read too.
"""

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from vitkit.config import from_json, to_json
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.image_model import ImageModel, by
from vitkit.models.resnet import GROUPS, ResNetConfig
from vitkit.models.vit import ViTConfig
from vitkit.models.weights.native import safetensors_chunks
from vitkit.models.weights.source import Source
from vitkit.models.weights.table import (
    PLAIN,
    Dialect,
    Hints,
    Row,
    Translation,
    departures,
    pair,
    same,
    stacked,
    to_theirs,
)
from vitkit.models.zoo import ModelConfig

_log = logging.getLogger("vitkit")

GELU: dict[str, Literal["tanh", "erf"]] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
}
"""Their names of one function's two forms (transformers `activations.py`)."""

BIT_NORM_EPS = 1e-5
BIT_STANDARDIZATION_EPS = 1e-8
"""Of all convolutions, the first one's too. No `config.json` says either (transformers `modeling_bit.py`)."""

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's numbers."""
BILINEAR = 2


@dataclass(frozen=True)
class Naming:
    """The names in an encoder layer that differ between files and the modules of release 5."""

    layers: str
    query: str
    key: str
    value: str
    out: str
    fc1: str
    fc2: str


FILES = Naming(
    "encoder.layer",
    "attention.attention.query",
    "attention.attention.key",
    "attention.attention.value",
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
MODULES = Naming(
    "layers",
    "attention.q_proj",
    "attention.k_proj",
    "attention.v_proj",
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
)


@dataclass(frozen=True)
class ViTSettings:
    """What a `config.json` says of a ViT; the defaults are those of transformers."""

    architectures: tuple[str, ...] = ()
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
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BitSettings:
    """What a `config.json` says of a BiT ResNet; the defaults are those of transformers."""

    architectures: tuple[str, ...] = ()
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
    id2label: Mapping[str, Any] = field(default_factory=dict)
    label2id: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Processor:
    """What a `preprocessor_config.json` says; the defaults are those of ViT's."""

    image_processor_type: str = ""
    do_resize: bool = True
    size: int | Mapping[str, Any] | None = None
    resample: int = BILINEAR
    do_center_crop: bool = False
    crop_size: int | Mapping[str, Any] | None = None
    do_rescale: bool = True
    rescale_factor: float = 1 / 255
    do_normalize: bool = True
    image_mean: float | tuple[float, ...] = 0.5
    image_std: float | tuple[float, ...] = 0.5


def recognises(source: Source) -> bool:
    """By the names of the arrays, or by a `config.json` of transformers beside them."""
    theirs = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
    return any(key.endswith(theirs) for key in source.shapes) or (
        {"model_type", "transformers_version"} <= source.config.keys()
    )


def read(source: Source, hints: Hints) -> Translation:
    """The model that `config.json` and the arrays stand for.

    Raises:
        VitkitError: no `config.json`, a kind of model that is not ours, or a part of it that we do not have.
    """
    if not source.config:
        raise VitkitError(
            f"{source.path} has the names of Hugging Face, which do not say everything: put the config.json "
            "(and the preprocessor_config.json) that came with it beside it."
        )
    kind = source.config.get("model_type")
    if kind in ("vit", "deit"):
        return _read_vit(source, hints)
    if kind == "bit":
        return _read_bit(source, hints)
    if kind == "vit-hybrid":
        raise VitkitError(
            f"{source.path}: hybrids of Hugging Face ('vit-hybrid') are not read: load the same weights "
            "from the original release's .npz, R50+ViT-B_16 say, or from timm's file."
        )
    raise VitkitError(f"{source.path}: of Hugging Face's models, vit, deit and bit are read, found {kind!r}.")


def write(model: ImageModel, path: Path) -> Path:
    """Write the folder that `from_pretrained` reads: weights, `config.json` and `preprocessor_config.json`.

    It is a `ViTForImageClassification` or `BitForImageClassification`; without a head, a `BitModel` or a
    `ViTModel`, whose pooler is our tanh layer (where there is none:
    `ViTModel.from_pretrained(path, add_pooling_layer=False)`).

    Raises:
        VitkitError: a model of ours is at `path`.
    """
    config = model.config
    settings: ViTSettings | BitSettings
    if isinstance(config, ViTConfig):
        settings = _vit_settings(config, model.card)
        rows = vit_table(config, "vit." if config.num_classes else "", FILES)
    else:
        settings = _bit_settings(config, model.card)
        rows = bit_table(config, "bit." if config.num_classes else "")
    if (path / "model.json").exists():
        raise VitkitError(f"{path} holds a model of vitkit's own layout: choose another folder.")
    path.mkdir(parents=True, exist_ok=True)
    chunks = safetensors_chunks(to_theirs(model.state_dict(), rows), metadata={"format": "pt"})
    replace_file(path / "model.safetensors", chunks)
    replace_json(path / "config.json", to_json(settings))
    replace_json(path / "preprocessor_config.json", _processor(config, model.card.preprocessing, path))
    return path


def absent(config: ModelConfig) -> list[str]:
    """What transformers cannot build; its hybrid is retired."""
    if isinstance(config, ResNetConfig):
        return [] if config.mixing == "convolution" else [f"{config.mixing} attention in a ResNet"]
    words = departures(config, PLAIN)
    if config.representation_size and config.num_classes:
        words.append("a tanh layer before the head (load with head='new' to drop it)")
    return words


def unsaid(config: ModelConfig) -> list[str]:
    """What their code fixes and we do not."""
    if isinstance(config, ViTConfig):
        return ["dropout after the GELU, which they do not apply"] if config.dropout else []
    words = []
    if config.norm_eps != BIT_NORM_EPS:
        words.append(f"a GroupNorm epsilon of {config.norm_eps} (theirs: {BIT_NORM_EPS})")
    if config.standardization_eps != BIT_STANDARDIZATION_EPS:
        words.append(
            f"an epsilon of {config.standardization_eps} in the weight standardisation (theirs: "
            f"{BIT_STANDARDIZATION_EPS})"
        )
    if config.max_pool_padding != "zeros":
        words.append(f"max-pooling padded with the {config.max_pool_padding} number (theirs: zeros)")
    return words


DIALECT = Dialect("huggingface", recognises, read, write, absent, unsaid)


# ViT


def _read_vit(source: Source, hints: Hints) -> Translation:
    said = _settings(ViTSettings, source, "config.json")
    shapes = source.shapes
    prefix = _prefix(source, "embeddings.cls_token")
    heads = said.num_attention_heads or hints.num_heads
    if heads is None:
        raise VitkitError(
            f"{source.path}: its config.json does not say num_attention_heads: give num_heads (12 in a Base)."
        )
    classes = _outputs(source, "classifier.weight")
    pooler = f"{prefix}pooler.dense.weight"
    naming = MODULES if f"{prefix}layers.0.{MODULES.fc1}.weight" in shapes else FILES
    stem = f"{prefix}embeddings.patch_embeddings.projection.weight"
    fc1 = f"{prefix}{naming.layers}.0.{naming.fc1}.weight"
    missing = [key for key in (stem, fc1) if key not in shapes]
    if missing or len(shapes[stem]) != 4:
        raise VitkitError(
            f"{source.path} holds no whole ViT: absent or misshapen: {', '.join(missing) or stem}."
        )
    width, in_channels, patch_height, patch_width = shapes[stem]
    _refuse(
        source,
        {
            f"a distillation token ({prefix}embeddings.distillation_token)": (
                f"{prefix}embeddings.distillation_token" in shapes
            ),
            "queries, keys and values without bias (qkv_bias false)": not said.qkv_bias,
            f"the activation {said.hidden_act}": said.hidden_act not in GELU,
            f"a pooler with the activation {said.pooler_act}": (
                not classes and pooler in shapes and said.pooler_act != "tanh"
            ),
            f"heads of {source.config.get('head_dim')} values (head_dim)": (
                source.config.get("head_dim") not in (None, width // heads)
            ),
        },
    )
    layer = re.compile(re.escape(f"{prefix}{naming.layers}.") + r"(\d+)\.")
    layers = {match[1] for key in shapes if (match := layer.match(key))}
    size = (said.image_size, said.image_size) if isinstance(said.image_size, int) else said.image_size
    processor, mean, std = _pixels(source, in_channels)
    config = ViTConfig(
        image_size=size,
        patch_size=(patch_height, patch_width),
        width=width,
        depth=len(layers),
        num_heads=heads,
        mlp_dim=_outputs(source, fc1),
        num_classes=classes,
        in_channels=in_channels,
        representation_size=None if classes else _outputs(source, pooler) or None,
        dropout=said.hidden_dropout_prob,
        attention_dropout=said.attention_probs_dropout_prob,
        gelu=GELU[said.hidden_act],
        norm_eps=said.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    masked = "of masked image modelling, which nothing here uses"
    ignored = {f"{prefix}embeddings.mask_token": f"the mask token {masked}"}
    ignored |= {f"decoder.0.{part}": f"the decoder {masked}" for part in ("weight", "bias")}
    if classes:
        unused = "a pooler beside a classifier, which does not look at it"
        ignored |= {f"{prefix}pooler.dense.{part}": unused for part in ("weight", "bias")}
    card = _card(source, said.id2label, classes, processor, size)
    return Translation(config, vit_table(config, prefix, naming), card, ignored)


def vit_table(config: ViTConfig, prefix: str, naming: Naming) -> list[Row]:
    """Every parameter of a ViT of `config` and what Hugging Face calls it."""
    rows = [
        *pair("stem", f"{prefix}embeddings.patch_embeddings.projection"),
        same("class_token", f"{prefix}embeddings.cls_token"),
        same("positions.0.embedding", f"{prefix}embeddings.position_embeddings"),
    ]
    parts = (naming.query, naming.key, naming.value)
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{prefix}{naming.layers}.{i}"
        rows += pair(f"{ours}.norm1", f"{theirs}.layernorm_before")
        for kind in ("weight", "bias"):
            rows.append(
                stacked(f"{ours}.attention.qkv.{kind}", (f"{theirs}.{part}.{kind}" for part in parts))
            )
        rows += pair(f"{ours}.attention.out", f"{theirs}.{naming.out}")
        rows += pair(f"{ours}.norm2", f"{theirs}.layernorm_after")
        rows += pair(f"{ours}.mlp.fc1", f"{theirs}.{naming.fc1}")
        rows += pair(f"{ours}.mlp.fc2", f"{theirs}.{naming.fc2}")
    rows += pair("norm", f"{prefix}layernorm")
    if config.representation_size:
        rows += pair("pre_logits", f"{prefix}pooler.dense")
    if config.num_classes:
        rows += pair("head", "classifier")
    return rows


def _vit_settings(config: ViTConfig, card: ModelCard) -> ViTSettings:
    names = _labels(card, config.num_classes)
    return ViTSettings(
        architectures=("ViTForImageClassification" if config.num_classes else "ViTModel",),
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        num_channels=config.in_channels,
        image_size=_one_number(config.image_size),
        patch_size=_one_number(config.patch_size),
        hidden_act="gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


# BiT


def _read_bit(source: Source, hints: Hints) -> Translation:
    said = _settings(BitSettings, source, "config.json")
    prefix = _prefix(source, "embedder.convolution.weight")
    stages = len(said.depths)
    sizes = tuple(4 * said.embedding_size * 2**s for s in range(stages))
    _refuse(
        source,
        {
            f"layers of the kind {said.layer_type}": said.layer_type != "preactivation",
            f"the activation {said.hidden_act}": said.hidden_act != "relu",
            f"padding {said.global_padding}": said.global_padding is not None,
            "a max-pooling padded dynamically (embedding_dynamic_padding)": said.embedding_dynamic_padding,
            f"GroupNorm of {said.num_groups} groups": said.num_groups != GROUPS,
            f"hidden_sizes {said.hidden_sizes} on an embedding_size of {said.embedding_size}": (
                said.hidden_sizes != sizes
            ),
            f"an output_stride of {said.output_stride}, which dilates": said.output_stride
            < 2 ** (stages + 1),
            f"a width_factor of {said.width_factor} (theirs makes a model only of 1)": said.width_factor != 1,
            f"depths {said.depths}, more than its arrays": sum(said.depths) > len(source.shapes),
        },
    )
    if said.drop_path_rate:
        _log.warning(
            "%s: trained with drop_path_rate %s, which is not here; predictions do not know it",
            source.path,
            said.drop_path_rate,
        )
    processor, mean, std = _pixels(source, said.num_channels)
    size = _size(processor.crop_size if processor.do_center_crop else processor.size) or hints.image_size
    if size is None:
        raise VitkitError(
            f"{source.path}: nothing here says the size of the images: give image_size=(height, width), "
            "224x224 usually, or put preprocessor_config.json beside the weights."
        )
    classes = _outputs(source, "classifier.1.weight")
    config = ResNetConfig(
        image_size=size,
        layers=said.depths,
        num_classes=classes,
        width_factor=said.embedding_size / 64,
        in_channels=said.num_channels,
        norm_eps=BIT_NORM_EPS,
        standardization_eps=BIT_STANDARDIZATION_EPS,
        max_pool_padding="zeros",
        image_mean=mean,
        image_std=std,
    )
    card = _card(source, said.id2label, classes, processor, size)
    return Translation(config, bit_table(config, prefix), card)


def bit_table(config: ResNetConfig, prefix: str) -> list[Row]:
    """Every parameter of a BiT ResNet of `config` and what Hugging Face calls it."""
    rows = [same("root.weight", f"{prefix}embedder.convolution.weight")]
    for s, units in enumerate(config.layers):
        for u in range(units):
            ours, theirs = f"stages.{s}.{u}", f"{prefix}encoder.stages.{s}.layers.{u}"
            for number in (1, 2, 3):
                rows += pair(f"{ours}.norm{number}", f"{theirs}.norm{number}")
                rows.append(same(f"{ours}.conv{number}.weight", f"{theirs}.conv{number}.weight"))
            if u == 0:
                rows.append(same(f"{ours}.proj.weight", f"{theirs}.downsample.conv.weight"))
    rows += pair("norm", f"{prefix}norm")
    if config.num_classes:
        rows += pair("head", "classifier.1")
    return rows


def _bit_settings(config: ResNetConfig, card: ModelCard) -> BitSettings:
    names = _labels(card, config.num_classes)
    channels = int(64 * config.width_factor)
    stages = len(config.layers)
    return BitSettings(
        architectures=("BitForImageClassification" if config.num_classes else "BitModel",),
        num_channels=config.in_channels,
        embedding_size=channels,
        hidden_sizes=tuple(4 * channels * 2**s for s in range(stages)),
        depths=config.layers,
        output_stride=max(32, 2 ** (stages + 1)),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


# What both have


_Settings = TypeVar("_Settings", ViTSettings, BitSettings, Processor)


def _settings(kind: type[_Settings], source: Source, file: str) -> _Settings:
    """The fields we ask for; null is the same as absent there."""
    asked = {one.name for one in fields(kind)}
    said = source.settings.get(file, {}).items()
    known = {key: value for key, value in said if key in asked and value is not None}
    return from_json(kind, known, str(source.path.with_name(file)))


def _refuse(source: Source, features: Mapping[str, bool]) -> None:
    found = [words for words, there in features.items() if there]
    if found:
        raise VitkitError(f"{source.path} has what no model of ours has: {'; '.join(found)}.")


def _prefix(source: Source, key: str) -> str:
    """What stands before the names of the trunk: "vit." under a classifier, nothing in a trunk alone."""
    found = [name for name in source.shapes if name.endswith(key)]
    if not found:
        raise VitkitError(
            f"{source.path}: its config.json says {source.config['model_type']}, but no {key} is there."
        )
    return found[0].removesuffix(key)


def _outputs(source: Source, weight: str) -> int:
    """How many numbers a linear layer makes; 0 where there is none."""
    shape = source.shapes.get(weight, (0, 0))
    if len(shape) != 2:
        raise VitkitError(f"{source.path}: {weight} is no matrix, its shape is {shape}.")
    return shape[0]


def _labels(card: ModelCard, num_classes: int) -> tuple[str, ...]:
    """Class names, or what transformers writes where there are none."""
    return card.class_names or tuple(f"LABEL_{i}" for i in range(num_classes))


def _card(
    source: Source, labels: Mapping[str, Any], classes: int, processor: Processor, size: tuple[int, int]
) -> ModelCard:
    names: tuple[str, ...] = ()
    if classes and labels and any(name != f"LABEL_{i}" for i, name in labels.items()):
        if set(labels) != {str(i) for i in range(classes)}:
            raise VitkitError(
                f"{source.path}: id2label in config.json has {len(labels)} names for {classes} classes."
            )
        names = tuple(str(labels[str(i)]) for i in range(classes))
    return ModelCard(class_names=names, preprocessing=_preprocessing(source, processor, size))


# Pixels


def _pixels(source: Source, channels: int) -> tuple[Processor, tuple[float, ...], tuple[float, ...]]:
    """The processor, and mean and std of pixels in [0, 1]."""
    if not source.preprocessor:
        _log.warning(
            "%s: no preprocessor_config.json beside it: pixel mean and std are taken to be 0.5", source.path
        )
    said = _settings(Processor, source, "preprocessor_config.json")
    # They scale pixels by any factor before the mean is taken off; we, by 1/255.
    scale = 255 * said.rescale_factor if said.do_rescale else 255.0
    if math.isclose(scale, 1, rel_tol=1e-6):
        scale = 1.0
    statistics = []
    for values in (said.image_mean, said.image_std) if said.do_normalize else (0.0, 1.0):
        several = (values,) if isinstance(values, float) else values
        if len(several) != channels:
            if len(set(several)) != 1:
                raise VitkitError(
                    f"{source.path}: preprocessor_config.json has the pixel statistics {list(several)} for "
                    f"images of {channels} channels: give one value for each."
                )
            several = several[:1] * channels
        statistics.append(tuple(value / scale for value in several))
    return said, statistics[0], statistics[1]


def _preprocessing(source: Source, said: Processor, size: tuple[int, int]) -> dict[str, Any]:
    """The same in our words, as `vitkit.data.transforms.Preprocessing` has them; a difference is logged."""
    if not source.preprocessor:
        return {}
    differences = []
    ours: dict[str, Any] = {"image_size": list(size), "resize": "stretch", "antialias": True}
    edges = said.size if isinstance(said.size, Mapping) else {}
    resized = _size(said.size)
    if said.do_center_crop and said.do_resize and resized is not None:
        cropped = _size(said.crop_size) or size
        fraction = min(cropped) / min(resized)
        if fraction > 1:
            differences.append("black borders where the crop is larger than the image (here: none)")
        ours |= {"resize": "crop", "crop_fraction": min(fraction, 1.0)}
        if "height" in edges or said.image_processor_type.startswith("DeiT"):
            differences.append(f"stretching to {by(resized)} before the crop (here: proportions are kept)")
    elif said.do_center_crop:
        ours |= {"resize": "crop", "crop_fraction": 1.0}
        differences.append("a crop of images that were not resized (here: resized to cover it)")
    elif "shortest_edge" in edges:
        differences.append("the proportions of the image (here: stretched to the model's size)")
    if said.do_resize and said.resample != BILINEAR:
        known = 0 <= said.resample < len(RESAMPLING)
        name = RESAMPLING[said.resample] if known else str(said.resample)
        differences.append(f"{name} resizing (here: bilinear)")
    if differences:
        _log.warning("%s: its images were prepared with %s", source.path, "; ".join(differences))
    return ours


def _processor(config: ModelConfig, preprocessing: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`preprocessor_config.json`: as we prepare images, as near as theirs can."""
    rows, columns = config.image_size
    fraction = preprocessing.get("crop_fraction", 0.875)
    ours: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": rows, "width": columns},
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.image_mean),
        "image_std": list(config.image_std),
    }
    differences = []
    if preprocessing.get("resize") == "crop" and rows == columns:
        ours |= {  # ViT's own processor has no central crop, BiT's has, for any model
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": round(rows / fraction)},
            "do_center_crop": True,
            "crop_size": {"height": rows, "width": columns},
        }
    elif preprocessing.get("resize") == "crop":
        differences.append("a central crop that is not square (theirs: stretched)")
    if not preprocessing.get("antialias", True):
        differences.append("resizing without antialiasing (theirs: with)")
    if differences:
        _log.warning("%s: preprocessor_config.json cannot say: %s", path, "; ".join(differences))
    return ours


def _size(value: int | Mapping[str, Any] | None) -> tuple[int, int] | None:
    """A size in any of their ways to write it, as (height, width)."""
    if isinstance(value, int):
        return value, value
    if isinstance(value, Mapping) and {"height", "width"} <= value.keys():
        return int(value["height"]), int(value["width"])
    if isinstance(value, Mapping) and "shortest_edge" in value:
        return int(value["shortest_edge"]), int(value["shortest_edge"])
    return None


def _one_number(size: tuple[int, int]) -> int | tuple[int, int]:
    return size[0] if size[0] == size[1] else size
