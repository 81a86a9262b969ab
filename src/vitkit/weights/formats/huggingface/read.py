"""Folders of Hugging Face's transformers: ViT and BiT, in both directions.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
The names are those that every release of transformers writes to files; the ones that its modules have had
since release 5 are read too.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vitkit.config import to_json
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit_config import Gelu, ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.files.safetensors import safetensors_chunks
from vitkit.weights.files.source import Source
from vitkit.weights.formats.bit import check_axes
from vitkit.weights.formats.huggingface.bit import (
    BIT_NORM_EPS,
    BIT_STANDARDIZATION_EPS,
    bit_settings,
    bit_table,
    read_bit,
)
from vitkit.weights.formats.huggingface.common import (
    labels_of,
    make_card,
    outputs_of,
    prefix_of,
    problem_type,
    refuse,
)
from vitkit.weights.formats.huggingface.pixels import one_number, read_pixels, write_processor
from vitkit.weights.formats.huggingface.settings import BitSettings, ViTSettings, settings_of
from vitkit.weights.formats.resnet_channels import absent_from_libraries
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
"""Their names of one function's three forms (transformers `activations.py`)."""


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
        return read_bit(source, hints)
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
        settings = bit_settings(config, model.card)
        rows = bit_table(config, "bit." if config.num_classes else "")
    if (path / "model.json").exists():
        raise VitkitError(f"{path} holds a model of vitkit's own format: choose another folder.")
    path.mkdir(parents=True, exist_ok=True)
    chunks = safetensors_chunks(to_theirs(model.state_dict(), rows), metadata={"format": "pt"})
    replace_file(path / "model.safetensors", chunks)
    replace_json(path / "config.json", to_json(settings))
    processor = write_processor(config, model.card, notes)
    replace_json(path / "preprocessor_config.json", processor)
    return path


def absent(config: ModelConfig) -> list[str]:
    """What transformers cannot build; its hybrid is retired."""
    if isinstance(config, ResNetConfig):
        mixing = [] if config.mixing == "convolution" else [f"{config.mixing} attention in a ResNet"]
        return mixing + absent_from_libraries(config)
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


def _read_vit(source: Source, hints: Hints) -> Translation:
    said = settings_of(ViTSettings, source, "config.json")
    shapes = source.shapes
    prefix = prefix_of(source, "embeddings.cls_token")
    heads = said.num_attention_heads or hints.num_heads
    if heads is None:
        raise NotSaidError(
            f"{source.path}: its config.json does not say num_attention_heads: give num_heads (12 in a Base)."
        )
    classes = outputs_of(source, "classifier.weight")
    pooler = f"{prefix}pooler.dense.weight"
    naming = MODULES if f"{prefix}layers.0.{MODULES.fc1}.weight" in shapes else FILES
    stem = f"{prefix}embeddings.patch_embeddings.projection.weight"
    fc1 = f"{prefix}{naming.layers}.0.{naming.fc1}.weight"
    missing = [key for key in (stem, fc1) if key not in shapes]
    if missing:
        raise VitkitError(f"{source.path} holds no whole ViT: absent: {', '.join(missing)}.")
    check_axes(source, stem, 4)
    width, in_channels, patch_height, patch_width = shapes[stem]
    refuse(
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
        mlp_dim=outputs_of(source, fc1),
        num_classes=classes,
        in_channels=in_channels,
        representation_size=None if classes else outputs_of(source, pooler) or None,
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
    card = make_card(source, said, classes, processor, config)
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
    names = labels_of(card, config.num_classes)
    return ViTSettings(
        architectures=("ViTForImageClassification" if config.num_classes else "ViTModel",),
        num_attention_heads=config.num_heads,
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        intermediate_size=config.mlp_dim,
        num_channels=config.in_channels,
        image_size=one_number(config.image_size),
        patch_size=one_number(config.patch_size),
        hidden_act={"tanh": "gelu_pytorch_tanh", "erf": "gelu", "quick": "quick_gelu"}[config.gelu],
        layer_norm_eps=config.norm_eps,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.attention_dropout,
        pooler_output_size=config.representation_size or config.width,
        problem_type=problem_type(card),
        id2label={str(i): name for i, name in enumerate(names)},
        label2id={name: i for i, name in enumerate(names)},
    )
