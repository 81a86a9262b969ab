"""Folders of Hugging Face's transformers: ViT and BiT, in both directions.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
The names are those that every release of transformers writes to files; the ones that its modules have had
since release 5 are read too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitkit.config import to_json
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.card import Card
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet_config import GROUPS, ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.assumptions import Assumption, assumed_resizing, assumed_statistics
from vitkit.weights.card import ModelCard, Task
from vitkit.weights.files.safetensors import safetensors_chunks
from vitkit.weights.files.source import Source
from vitkit.weights.formats.bit import check_axes
from vitkit.weights.formats.huggingface.pixels import (
    one_number,
    read_pixels,
    read_rule,
    size_of,
    write_processor,
)
from vitkit.weights.formats.huggingface.settings import BitSettings, Processor, ViTSettings, settings_of
from vitkit.weights.table import (
    PLAIN,
    Dialect,
    Hints,
    NotSaidError,
    Row,
    Translation,
    departures,
    pair,
    same,
    stacked,
    to_theirs,
)

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

SIGMOID = "multi_label_classification"
"""Their `problem_type` of a loss that asks yes or no of every class."""

BIT_NORM_EPS = 1e-5
BIT_STANDARDIZATION_EPS = 1e-8
"""Of all convolutions, the first one's too. No `config.json` says either (transformers `modeling_bit.py`)."""


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
    raise VitkitError(f"{source.path}: of Hugging Face's models, vit and bit are read, found {kind!r}.")


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
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
    processor = write_processor(model, notes)
    replace_json(path / "preprocessor_config.json", processor)
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
    said = settings_of(ViTSettings, source, "config.json")
    shapes = source.shapes
    prefix = _prefix(source, "embeddings.cls_token")
    heads = said.num_attention_heads or hints.num_heads
    if heads is None:
        raise NotSaidError(
            f"{source.path}: its config.json does not say num_attention_heads: give num_heads (12 in a Base)."
        )
    classes = _outputs(source, "classifier.weight")
    pooler = f"{prefix}pooler.dense.weight"
    naming = MODULES if f"{prefix}layers.0.{MODULES.fc1}.weight" in shapes else FILES
    stem = f"{prefix}embeddings.patch_embeddings.projection.weight"
    fc1 = f"{prefix}{naming.layers}.0.{naming.fc1}.weight"
    missing = [key for key in (stem, fc1) if key not in shapes]
    if missing:
        raise VitkitError(f"{source.path} holds no whole ViT: absent: {', '.join(missing)}.")
    check_axes(source, stem, 4)
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
    processor, mean, std = read_pixels(source, in_channels)
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
    card = _card(source, said, classes, processor, config)
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


def _vit_settings(config: ViTConfig, card: Card) -> ViTSettings:
    names = _labels(card, config.num_classes)
    return ViTSettings(
        architectures=("ViTForImageClassification" if config.num_classes else "ViTModel",),
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        num_channels=config.in_channels,
        image_size=one_number(config.image_size),
        patch_size=one_number(config.patch_size),
        hidden_act="gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
        problem_type=_problem_type(card),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


# BiT


def _read_bit(source: Source, hints: Hints) -> Translation:
    said = settings_of(BitSettings, source, "config.json")
    prefix = _prefix(source, "embedder.convolution.weight")
    stages = len(said.depths)
    if said.depths and (min(said.depths) < 1 or sum(said.depths) > len(source.shapes)):
        raise VitkitError(
            f"{source.path}: depths {said.depths} in config.json: stages of at least one unit each, and no "
            "more than its arrays can be, were expected."
        )
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
        },
    )
    if said.drop_path_rate:
        source.notes.append(
            f"trained with drop_path_rate {said.drop_path_rate}, which is not here; predictions have none"
        )
    processor, mean, std = read_pixels(source, said.num_channels)
    size = size_of(source, processor, "crop_size" if processor.do_center_crop else "size") or hints.image_size
    if size is None:
        raise NotSaidError(
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
    card = _card(source, said, classes, processor, config)
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


def _bit_settings(config: ResNetConfig, card: Card) -> BitSettings:
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
        problem_type=_problem_type(card),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )


# What both have


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


def _labels(card: Card, num_classes: int) -> tuple[str, ...]:
    """Class names, or what transformers writes where there are none."""
    return card.class_names or tuple(f"LABEL_{i}" for i in range(num_classes))


def _problem_type(card: Card) -> str | None:
    return SIGMOID if card.loss == "sigmoid" else None


def _card(
    source: Source,
    said: ViTSettings | BitSettings,
    classes: int,
    processor: Processor,
    config: ModelConfig,
) -> ModelCard:
    labels = said.id2label
    names: tuple[str, ...] = ()
    if classes and labels and any(name != f"LABEL_{i}" for i, name in labels.items()):
        if set(labels) != {str(i) for i in range(classes)}:
            raise VitkitError(
                f"{source.path}: id2label in config.json has {len(labels)} names for {classes} classes."
            )
        names = tuple(str(labels[str(i)]) for i in range(classes))
    task = Task(loss="sigmoid") if said.problem_type == SIGMOID else None
    rule = read_rule(source, processor, config.image_size)
    assumed: list[Assumption] = []
    if processor.do_normalize and not {"image_mean", "image_std"} <= source.preprocessor.keys():
        whose = "the default of their image processor"
        assumed.append(assumed_statistics(config.image_mean, config.image_std, whose))
    if not source.preprocessor:
        assumed.append(assumed_resizing(rule, "as their ViTImageProcessor does"))
    return ModelCard(class_names=names, task=task, preprocessing=rule, assumed=tuple(assumed))
