"""Folders of Hugging Face's transformers, read: ViT and BiT.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
"""

import re
from collections.abc import Mapping
from typing import Literal

from vitkit.errors import VitkitError
from vitkit.models.resnet_config import GROUPS, ResNetConfig
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.assumptions import Assumption, assumed_resizing, assumed_statistics
from vitkit.weights.card import ModelCard, Task
from vitkit.weights.files.source import Source
from vitkit.weights.formats.huggingface.names import FILES, MODULES, bit_rows, vit_rows
from vitkit.weights.formats.huggingface.pixels import (
    read_pixels,
    read_rule,
    size_of,
)
from vitkit.weights.formats.huggingface.settings import (
    BIT_NORM_EPS,
    BIT_STANDARDIZATION_EPS,
    SIGMOID,
    BitSettings,
    Processor,
    ViTSettings,
    settings_of,
)
from vitkit.weights.formats.huggingface.write import lost_numerics, unsupported, write
from vitkit.weights.shapes import check_axes
from vitkit.weights.table import (
    CheckpointFormat,
    Hints,
    NotRecordedError,
    Translation,
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


CHECKPOINT_FORMAT = CheckpointFormat("huggingface", recognises, read, write, unsupported, lost_numerics)


# ViT


def _read_vit(source: Source, hints: Hints) -> Translation:
    said = settings_of(ViTSettings, source, "config.json")
    shapes = source.shapes
    prefix = _prefix(source, "embeddings.cls_token")
    heads = said.num_attention_heads or hints.num_heads
    if heads is None:
        raise NotRecordedError(
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
    return Translation(config, vit_rows(config, prefix, naming), card, ignored)


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
        raise NotRecordedError(
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
    return Translation(config, bit_rows(config, prefix), card)


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
