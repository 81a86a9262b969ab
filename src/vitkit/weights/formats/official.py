"""The `.npz` format of google-research/vision_transformer: names, shapes, and which ViT or hybrid they make.

Two namings are read: the released files' (before Flax's Linen) and today's code's. Files are written in the
first. The authors' ResNets, released as BiT, are read and written here too: see `bit`.
"""

from collections import namedtuple
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import BackboneConfig, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.text import format_size
from vitkit.weights import table
from vitkit.weights.files.source import Source, write_npz
from vitkit.weights.formats import bit
from vitkit.weights.formats.bit import absent_from_release
from vitkit.weights.model_card import ModelCard

POSITION = "Transformer/posembed_input/pos_embedding"

ROOTS = ("", "params/", "opt/target/")
"""The prefix of a file's parameters: at the top where only they were published, else in a training
checkpoint of either age (big_vision `utils.py`, `load_params`)."""


Naming = namedtuple("Naming", "norm1 attention norm2 mlp")
"""The four names in an encoder block that differ between releases."""

RELEASED = Naming("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN = Naming("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def recognises(source: Source) -> bool:
    root = root_of(source, ROOTS)
    vit = root is not None and any(key.startswith(f"{root}Transformer/") for key in source.shapes)
    return vit or bit.recognises(source)


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ViT, hybrid or ResNet whose arrays have these names and shapes.

    Raises:
        VitkitError: the arrays make no such model, or its image size is neither given nor in the file.
    """
    if bit.recognises(source):
        return bit.read(source, hints)
    tree, ignored = parameters_of(source, root_of(source, ROOTS) or "")
    table.check_axes(tree, POSITION, 3)
    config = encoder_config(tree, "token" if "cls" in tree else "mean")
    positions = tree.shapes[POSITION][1] - config.prefix_positions
    size = table.image_size_of(tree, config.patch_size, positions, hints.image_size, config.backbone)
    config = replace(config, image_size=size)
    # Straight to the size, by tf.image.resize (vision_transformer input_pipeline.py:212-214).
    card = ModelCard(preprocessing=Preprocessing(config.image_size, antialias=False))
    return table.Translation(config, name_table(config, naming_of(tree)), card, ignored, tree)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write an `.npz` under the names of the released files of ViTs and hybrids.

    Where tokens before the patches have no positions (big_vision), the class token is given one of zeros:
    reading it back makes a model with such a row, and the same logits.
    """
    return write_npz(path, table.to_file_tensors(model.state_dict(), name_table(model.config, RELEASED)))


def unsupported(config: ViTConfig) -> list[str]:
    """Name the parts of a ViT that the original's code cannot build."""
    others = ("backbone", "class_token_position")  # every value of these can be stored
    storable = {key: values for key, values in table.PLAIN.items() if key not in others}
    return table.unsupported_values(config, {**storable, "pool": ("token", "mean")})


def lost_numerics(config: ViTConfig) -> list[str]:
    """Name the numerics that the format does not record: the original's code is its only description."""
    return [*lost_arithmetic(config), *lost_pixels(config)]


HOLDINGS = {
    "ViT": table.Holding(write, unsupported, lost_numerics),
    "ResNet": table.Holding(bit.write, absent_from_release, lambda c: bit.lost_numerics(c) + lost_pixels(c)),
}
CHECKPOINT_FORMAT = table.CheckpointFormat("official", recognises, read, HOLDINGS, is_folder=False)


# The parts that big_vision's format has in common with this one.


def root_of(source: Source, roots: Collection[str]) -> str | None:
    """Return the first of `roots` that holds the patch projection."""
    return next((root for root in roots if f"{root}embedding/kernel" in source), None)


def parameters_of(source: Source, root: str) -> tuple[Source, dict[str, str]]:
    """Return the parameters under `root`, and why the other arrays of a training checkpoint are left out.

    Anything else in the file keeps its name, and is refused as unexpected when the tensors are read.

    Raises:
        VitkitError: the file holds one parameter twice, under `root` and at the top.
    """
    beside = {"opt/": "state of the optimiser", "extra/": "state of the training run"} if root else {}
    names, ignored = dict[str, str](), dict[str, str]()
    for key in source.shapes:
        reason = next((text for start, text in beside.items() if key.startswith(start)), None)
        if key.startswith(root):
            names[key.removeprefix(root)] = key
        elif reason:
            ignored[key] = reason
        else:
            names[key] = key
    if twice := sorted(set(source.shapes) - set(names.values()) - set(ignored)):
        raise VitkitError(f"{source.path}: {', '.join(twice[:3])}: there is another array of this name.")
    return source.renamed(names), ignored


def encoder_config(source: Source, pool: Any) -> ViTConfig:
    """Return the whole configuration except the image size, which is left at the size of one token.

    Raises:
        VitkitError: an array that it is read from is missing or has another number of axes.
    """
    shapes, naming = source.shapes, naming_of(source)
    first = "Transformer/encoderblock_0"
    heads, hidden = f"{first}/{naming.attention}/query/kernel", f"{first}/{naming.mlp}/Dense_0/kernel"
    for key, axes in (("embedding/kernel", 4), (heads, 3), (hidden, 2)):
        table.check_axes(source, key, axes)
    patch_height, patch_width, in_channels, width = shapes["embedding/kernel"]
    backbone = None
    if "conv_root/kernel" in source:
        table.check_axes(source, "conv_root/kernel", 4)
        backbone = BackboneConfig(
            table.count_units(source, ""), width_factor=shapes["conv_root/kernel"][-1] / 64
        )
        in_channels = shapes["conv_root/kernel"][-2]
    token_size = (patch_height, patch_width)
    if backbone:
        token_size = (patch_height * backbone.stride, patch_width * backbone.stride)
    return ViTConfig(
        image_size=token_size,
        patch_size=(patch_height, patch_width),
        width=width,
        depth=table.count_layers(source, r"Transformer/encoderblock_(\d+)/"),
        num_heads=shapes[heads][1],
        mlp_dim=shapes[hidden][1],
        num_classes=table.count_outputs(source, "head") or 0,
        in_channels=in_channels,
        backbone=backbone,
        pool=pool,
        representation_size=table.count_outputs(source, "pre_logits"),
        image_mean=(0.5,) * in_channels,
        image_std=(0.5,) * in_channels,
    )


def lost_arithmetic(config: ViTConfig) -> Iterator[str]:
    """Name the numerics of a ViT that the names of its arrays do not show."""
    yield from table.training_alone(config)
    if config.gelu != "tanh":
        form = {"erf": "exact", "quick": "quick"}[config.gelu]
        yield f"GELU in its {form} form (the original computes the tanh form)"
    yield from table.differences("the original", ("norm_eps", config.norm_eps, 1e-6))
    if config.backbone:
        usual = BackboneConfig(config.backbone.layers, config.backbone.width_factor)
        for name in ("norm_eps", "standardization", "standardization_eps"):
            values = getattr(config.backbone, name), getattr(usual, name)
            yield from table.differences("the original", (f"the backbone's {name}", *values))
    rows, columns = config.grid
    if rows != columns or config.image_size != (rows * config.token_size[0], columns * config.token_size[1]):
        yield (
            f"the image size {format_size(config.image_size)}, which is to be given when the file is loaded"
        )


def lost_pixels(config: ModelConfig) -> list[str]:
    half = (0.5,) * config.in_channels
    if config.image_mean == config.image_std == half:
        return []
    return [f"pixel mean {config.image_mean} and std {config.image_std} (the original: 0.5)"]


def naming_of(source: Source) -> Naming:
    """Recognise which of the two namings a file follows."""
    linen = f"Transformer/encoderblock_0/{LINEN.attention}/query/kernel"
    return LINEN if linen in source else RELEASED


# The tables.


def name_table(config: ViTConfig, naming: Naming) -> list[table.Row]:
    """List every parameter of a ViT or hybrid with its name and axes in the original release."""
    position = table.renamed("positions.0.embedding", POSITION)
    if config.class_token and not config.class_token_position:
        position = replace(position, write=lambda rows: [torch.cat([torch.zeros_like(rows[:, :1]), rows], 1)])
    return [*stem(config), position, *encoder(config, naming), *head(config)]


def stem(config: ViTConfig) -> list[table.Row]:
    """List the parameters of the patch projection, and of the ResNet before it in a hybrid."""
    if config.backbone is None:
        return [
            table.convolution("stem.weight", "embedding/kernel"),
            table.renamed("stem.bias", "embedding/bias"),
        ]
    rows = [
        table.convolution("stem.root.weight", "conv_root/kernel"),
        *_group_norm("stem.root_norm", "gn_root"),
    ]
    for s, units in enumerate(config.backbone.layers):
        for u in range(units):
            ours, theirs = f"stem.stages.{s}.{u}", f"block{s + 1}/unit{u + 1}"
            names = [(f"conv{n}", f"norm{n}", f"conv{n}", f"gn{n}") for n in (1, 2, 3)]
            if u == 0:  # the channels change in every stage's first unit, in the first stage too
                names.append(("proj", "proj_norm", "conv_proj", "gn_proj"))
            for kernel, norm, their_kernel, their_norm in names:
                rows.append(table.convolution(f"{ours}.{kernel}.weight", f"{theirs}/{their_kernel}/kernel"))
                rows += _group_norm(f"{ours}.{norm}", f"{theirs}/{their_norm}")
    projection = table.convolution("stem.projection.weight", "embedding/kernel")
    return [*rows, projection, table.renamed("stem.projection.bias", "embedding/bias")]


def encoder(config: ViTConfig, naming: Naming) -> list[table.Row]:
    """List the parameters of class token, blocks and last norm."""
    rows = [table.renamed("class_token", "cls")] if config.class_token else []
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        rows += layer_norm(f"{ours}.norm1", f"{theirs}/{naming.norm1}")
        rows += attention(f"{ours}.attention", f"{theirs}/{naming.attention}", config)
        rows += layer_norm(f"{ours}.norm2", f"{theirs}/{naming.norm2}")
        rows += mlp(f"{ours}.mlp", f"{theirs}/{naming.mlp}")
    return rows + layer_norm("norm", "Transformer/encoder_norm")


def head(config: ViTConfig) -> list[table.Row]:
    """List the parameters that follow the pooling: the tanh layer and the head, as far as there are any."""
    rows = dense("pre_logits", "pre_logits") if config.representation_size else []
    return rows + (dense("head", "head") if config.num_classes else [])


def mlp(ours: str, theirs: str) -> list[table.Row]:
    return dense(f"{ours}.fc1", f"{theirs}/Dense_0") + dense(f"{ours}.fc2", f"{theirs}/Dense_1")


def dense(ours: str, theirs: str) -> list[table.Row]:
    """Return the rows of a Flax dense layer: its kernel is our weight transposed."""
    kernel = table.Row(
        f"{ours}.weight",
        (f"{theirs}/kernel",),
        lambda arrays: arrays[0].permute(1, 0),
        lambda tensor: [tensor.permute(1, 0)],
    )
    return [kernel, table.renamed(f"{ours}.bias", f"{theirs}/bias")]


def layer_norm(ours: str, theirs: str) -> list[table.Row]:
    """Return the rows of a Flax layer norm."""
    return [
        table.renamed(f"{ours}.weight", f"{theirs}/scale"),
        table.renamed(f"{ours}.bias", f"{theirs}/bias"),
    ]


def _group_norm(ours: str, theirs: str) -> list[table.Row]:
    """Return the rows of a Flax group norm: (1, 1, 1, C) in the released files, (C,) in today's code."""
    return [
        table.Row(
            f"{ours}.{part}",
            (f"{theirs}/{name}",),
            lambda arrays: arrays[0].flatten(),
            lambda tensor: [tensor[None, None, None]],
        )
        for part, name in (("weight", "scale"), ("bias", "bias"))
    ]


def attention(ours: str, theirs: str, config: ViTConfig) -> list[table.Row]:
    """Return the rows of a Flax multi-head attention: kernels by head, query, key and value apart."""
    width, heads, head_dim = config.width, config.num_heads, config.head_dim
    parts = ("query", "key", "value")

    def joined(arrays: list[Tensor]) -> Tensor:
        return torch.cat([array.reshape(width, width).T for array in arrays])

    return [
        table.Row(
            f"{ours}.qkv.weight",
            tuple(f"{theirs}/{part}/kernel" for part in parts),  # each (D, heads, head_dim)
            joined,
            lambda tensor: [part.T.reshape(width, heads, head_dim) for part in tensor.chunk(3)],
        ),
        table.Row(
            f"{ours}.qkv.bias",
            tuple(f"{theirs}/{part}/bias" for part in parts),  # each (heads, head_dim)
            lambda arrays: torch.cat([array.reshape(width) for array in arrays]),
            lambda tensor: [part.reshape(heads, head_dim) for part in tensor.chunk(3)],
        ),
        table.Row(
            f"{ours}.out.weight",
            (f"{theirs}/out/kernel",),  # (heads, head_dim, D)
            lambda arrays: arrays[0].reshape(width, width).T,
            lambda tensor: [tensor.T.reshape(heads, head_dim, width)],
        ),
        table.renamed(f"{ours}.out.bias", f"{theirs}/out/bias"),
    ]
