"""Folders of Hugging Face's transformers, read: ViT and BiT.

A DeiT without distillation is a ViT there; what they call deit has a distillation token and is refused.

`config.json` gives the arithmetic, the arrays give the shapes, `preprocessor_config.json` gives the pixels.
"""

import re

from vitkit.errors import VitkitError
from vitkit.models.vit_config import Gelu, ViTConfig
from vitkit.weights.files.source import Source
from vitkit.weights.formats.huggingface.bit import (
    read_bit,
)
from vitkit.weights.formats.huggingface.common import (
    make_card,
    outputs_of,
    prefix_of,
    refuse,
)
from vitkit.weights.formats.huggingface.names import FILES, MODULES, vit_rows
from vitkit.weights.formats.huggingface.pixels import read_pixels
from vitkit.weights.formats.huggingface.settings import ViTSettings, settings_of
from vitkit.weights.formats.huggingface.write import HOLDINGS
from vitkit.weights.table import (
    CheckpointFormat,
    Hints,
    NotRecordedError,
    Translation,
    check_axes,
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


def recognises(source: Source) -> bool:
    """Recognise the format by the names of the arrays, or by a `config.json` of transformers beside them."""
    theirs = ("embeddings.patch_embeddings.projection.weight", "embedder.convolution.weight")
    return any(key.endswith(theirs) for key in source.shapes) or (
        {"model_type", "transformers_version"} <= source.config.keys()
    )


def read(source: Source, hints: Hints) -> Translation:
    """Read the model that `config.json` and the arrays describe.

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


CHECKPOINT_FORMAT = CheckpointFormat("huggingface", recognises, read, HOLDINGS)


def _read_vit(source: Source, hints: Hints) -> Translation:
    settings = settings_of(ViTSettings, source, "config.json")
    shapes = source.shapes
    prefix = prefix_of(source, "embeddings.cls_token")
    heads = settings.num_attention_heads or hints.num_heads
    if heads is None:
        raise NotRecordedError(
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
    _refuse_other_vits(source, settings, prefix, heads, width)
    layer = re.compile(re.escape(f"{prefix}{naming.layers}.") + r"(\d+)\.")
    layers = {match[1] for key in shapes if (match := layer.match(key))}
    size = (
        (settings.image_size, settings.image_size)
        if isinstance(settings.image_size, int)
        else settings.image_size
    )
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
        dropout=settings.hidden_dropout_prob,
        attention_dropout=settings.attention_probs_dropout_prob,
        gelu=GELU[settings.hidden_act],
        norm_eps=settings.layer_norm_eps,
        image_mean=mean,
        image_std=std,
    )
    card = make_card(source, settings, classes, processor, config)
    return Translation(config, vit_rows(config, prefix, naming), card, _unused(prefix, classes))


def _refuse_other_vits(source: Source, settings: ViTSettings, prefix: str, heads: int, width: int) -> None:
    """Refuse what their class can be and ours cannot."""
    classes, pooler = outputs_of(source, "classifier.weight"), f"{prefix}pooler.dense.weight"
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
            f"heads of {source.config.get('head_dim')} values (head_dim)": (
                source.config.get("head_dim") not in (None, width // heads)
            ),
        },
    )


def _unused(prefix: str, classes: int) -> dict[str, str]:
    """Name the arrays that are left out on purpose, and why."""
    masked = "of masked image modelling, which nothing here uses"
    ignored = {f"{prefix}embeddings.mask_token": f"the mask token {masked}"}
    ignored |= {f"decoder.0.{part}": f"the decoder {masked}" for part in ("weight", "bias")}
    if classes:
        unused = "a pooler beside a classifier, which does not look at it"
        ignored |= {f"{prefix}pooler.dense.{part}": unused for part in ("weight", "bias")}
    return ignored
