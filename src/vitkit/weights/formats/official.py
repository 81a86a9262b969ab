"""The `.npz` formats of the authors' releases, under one name: vision_transformer's and big_transfer's.

google-research/vision_transformer has ViTs and hybrids, whose names and shapes say which one they make. Two
namings are read: the released files' (before Flax's Linen) and today's code's. Files are written in the
first. google-research/big_transfer has the ResNets of BiT, the paper's baseline, whose names come from the
TensorFlow code that trained them (big_transfer `bit_pytorch/models.py:93-174`).
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import GROUPS, BackboneConfig, ResNetConfig, ViTConfig, usual_stage_channels
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size, join_names
from vitkit.weights import table
from vitkit.weights.files.source import Source, write_npz
from vitkit.weights.model_card import ModelCard

KERNEL = "standardized_conv2d/kernel"
ROOT = f"resnet/root_block/{KERNEL}"
HEAD = "resnet/head/conv2d"
GAMMA, SCALE = ("/gamma", "/beta"), ("/scale", "/bias")
"""The names of a norm's scale and shift in TensorFlow and in Flax."""


def _read_bit(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ResNet whose arrays have these names and shapes.

    Raises:
        VitkitError: no image size is given: the arrays fit every size, and none is written in the file.
    """
    if hints.image_size is None:
        raise table.NotRecordedError(
            f"{source.path}: a BiT file does not say which images it is for: give image_size=(height, "
            "width), usually 224 for the pre-trained files and 480 for files fine-tuned on ImageNet."
        )
    shapes = source.shapes
    table.check_axes(source, ROOT, 4)
    in_channels, root_channels = shapes[ROOT][2:]
    if f"{HEAD}/kernel" in source:
        table.check_pointwise(source, f"{HEAD}/kernel", (0, 1))
    if f"{HEAD}/bias" in source:
        table.check_axes(source, f"{HEAD}/bias", 1)
    config = ResNetConfig(
        image_size=hints.image_size,
        layers=table.count_units(source, "resnet/"),
        num_classes=table.count_outputs(source, HEAD) or 0,
        width_factor=root_channels / 64,  # 64 channels times the factor, as in `ResNetConfig.root_channels`
        in_channels=in_channels,
        image_mean=(0.5,) * in_channels,
        image_std=(0.5,) * in_channels,
    )
    # Straight to the size, by torchvision's resizing of PIL images; then mean and std 0.5, which gives pixels
    # from -1 to 1 (big_transfer bit_pytorch/train.py:59-63).
    card = ModelCard(preprocessing=Preprocessing(config.image_size))
    return table.Translation(config, bit_rows(config), card, source=source)


def _lost_of_bit(config: ResNetConfig) -> list[str]:
    """Name what the format does not record: the image size, and numerics that big_transfer's code lacks."""
    usual = ResNetConfig(config.image_size, config.layers, config.num_classes)
    size = f"the image size {format_size(config.image_size)}, which is to be given when the file is loaded"
    names = ("norm_eps", "standardization_eps", "max_pool_padding")
    numerics = ((name, getattr(config, name), getattr(usual, name)) for name in names)
    return [size, *table.differences("the original", *numerics), *lost_pixels(config)]


def bit_rows(config: ResNetConfig) -> list[table.Row]:
    """List every parameter of a ResNet with its name and axes in BiT's release."""
    rows = [table.convolution("root.weight", ROOT)]
    for stage, units in enumerate(config.layers):
        for unit in range(units):
            ours, theirs = f"stages.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                rows += table.weight_and_bias(f"{ours}.norm{number}", f"{theirs}/{letter}/group_norm", GAMMA)
                rows.append(table.convolution(f"{ours}.conv{number}.weight", f"{theirs}/{letter}/{KERNEL}"))
            if unit == 0:  # the channels change in every stage's first unit, in the first stage too
                rows.append(table.convolution(f"{ours}.proj.weight", f"{theirs}/a/proj/{KERNEL}"))
    rows += table.weight_and_bias("norm", "resnet/group_norm", GAMMA)
    if config.num_classes:
        head = table.Row(
            "head.weight",
            (f"{HEAD}/kernel",),  # (1, 1, C, K): a convolution of one pixel, C channels to K classes
            lambda arrays: arrays[0][0, 0].T,
            lambda tensor: [tensor.T[None, None]],
        )
        rows += [head, table.renamed("head.bias", f"{HEAD}/bias")]
    return rows


def _without_numbers(source: Source) -> Source:
    """Take the numbers off convolutions' names, which some files have (big_vision `bit_paper.py:217-222`)."""
    names = {re.sub(r"/standardized_conv2d_\d+/", "/standardized_conv2d/", key): key for key in source.shapes}
    if len(names) < len(source.shapes):
        raise VitkitError(
            f"{source.path}: expected convolutions whose names differ in more than a number, found a second "
            f"of {join_names(sorted(set(source.shapes) - set(names.values())))}. Keep one of each."
        )
    return source.renamed(names)


def with_channels(config: ResNetConfig, root: int, stages: tuple[int, ...]) -> ResNetConfig:
    """Give a configuration the channels of a file: by `width_factor` alone where it suffices.

    Raises:
        VitkitError: GroupNorm cannot divide them into its groups.
    """
    if stages == usual_stage_channels(config.layers, root / 64):
        return replace(config, width_factor=root / 64, root_width=None, stage_widths=None)
    return replace(config, width_factor=1.0, root_width=root, stage_widths=stages)


def has_usual_channels(config: ResNetConfig) -> bool:
    """Whether the channels of all stages follow from the root's, as in every BiT that was released."""
    return config.stage_channels == usual_stage_channels(config.layers, config.root_channels / 64)


def absent_from_release(config: ResNetConfig) -> Iterator[str]:
    """Name the parts of a configuration that BiT's own code cannot build."""
    if config.mixing != "convolution":
        yield f"{config.mixing} attention in a ResNet"
    if config.groups != GROUPS:
        yield f"groups {config.groups} (only {GROUPS})"
    if not has_usual_channels(config):
        yield f"root_width {config.root_channels} with stage_widths {config.stage_channels}"


def absent_from_libraries(config: ResNetConfig) -> Iterator[str]:
    """Name the parts that neither timm nor transformers can build.

    Both round the channels of a bottleneck to a multiple of 8, and both have a projection in the first unit
    of every stage, which a ResNet here has only where the sizes change.
    """
    if config.mixing != "convolution":
        yield f"{config.mixing} attention in a ResNet"
    if any(width % 32 for width in config.stage_channels) or config.root_channels % 8:
        yield (
            f"a root of {config.root_channels} channels and stages of {config.stage_channels} (only "
            "multiples of 8 and of 32)"
        )
    if config.root_channels == config.stage_channels[0]:
        yield f"a first stage of as many channels as the root, {config.root_channels}"


POSITION = "Transformer/posembed_input/pos_embedding"

ROOTS = ("", "params/", "opt/target/")
"""The prefix of a file's parameters: at the top where only they were published, else in a training
checkpoint of either age (big_vision `utils.py`, `load_params`)."""


class Naming(NamedTuple):
    """The names of the parts of a block."""

    norm1: str
    attention: str
    norm2: str
    mlp: str


"""The four names in an encoder block that differ between releases."""

RELEASED = Naming("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN = Naming("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def recognises(source: Source) -> bool:
    root = root_of(source, ROOTS)
    vit = root is not None and any(key.startswith(f"{root}Transformer/") for key in source.shapes)
    return vit or ROOT in _without_numbers(source)


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ViT, hybrid or ResNet whose arrays have these names and shapes.

    Raises:
        VitkitError: the arrays make no such model, or its image size is neither given nor in the file.
    """
    if ROOT in (released := _without_numbers(source)):
        return _read_bit(released, hints)
    tree, ignored = parameters_of(source, root_of(source, ROOTS) or "")
    table.check_axes(tree, POSITION, 3)
    config = encoder_config(tree, "token" if "cls" in tree else "mean")
    positions = tree.shapes[POSITION][1] - config.prefix_positions
    size, _ = table.image_size_of(tree, config.patch_size, positions, hints.image_size, config.backbone)
    config = replace(config, image_size=size)
    # Straight to the size, by tf.image.resize (vision_transformer input_pipeline.py:212-214).
    card = ModelCard(preprocessing=Preprocessing(config.image_size, antialias=False))
    return table.Translation(config, name_table(config, naming_of(tree)), card, ignored, tree)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write an `.npz` under the names of the released files.

    Where tokens before the patches have no positions (big_vision), the class token is given one of zeros:
    reading it back makes a model with such a row, and the same logits.
    """
    config = model.config
    rows = bit_rows(config) if config.family == "ResNet" else name_table(config, RELEASED)
    return write_npz(path, table.to_file_tensors(model.state_dict(), rows))


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
    "ResNet": table.Holding(write, absent_from_release, _lost_of_bit),
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
        factor = shapes["conv_root/kernel"][-1] / 64
        backbone = BackboneConfig(table.count_units(source, ""), width_factor=factor)
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
        size = format_size(config.image_size)
        yield f"the image size {size}, which is to be given when the file is loaded"


def lost_pixels(config: ViTConfig | ResNetConfig) -> list[str]:
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
        bias = table.renamed("stem.bias", "embedding/bias")
        return [table.convolution("stem.weight", "embedding/kernel"), bias]
    rows = [table.convolution("stem.root.weight", "conv_root/kernel")]
    rows += _group_norm("stem.root_norm", "gn_root")
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
        rows += table.weight_and_bias(f"{ours}.norm1", f"{theirs}/{naming.norm1}", SCALE)
        rows += attention(f"{ours}.attention", f"{theirs}/{naming.attention}", config)
        rows += table.weight_and_bias(f"{ours}.norm2", f"{theirs}/{naming.norm2}", SCALE)
        rows += mlp(f"{ours}.mlp", f"{theirs}/{naming.mlp}")
    return rows + table.weight_and_bias("norm", "Transformer/encoder_norm", SCALE)


def head(config: ViTConfig) -> list[table.Row]:
    """List the parameters that follow the pooling: the tanh layer and the head, as far as there are any."""
    rows = dense("pre_logits", "pre_logits") if config.representation_size else []
    return rows + (dense("head", "head") if config.num_classes else [])


def mlp(ours: str, theirs: str) -> list[table.Row]:
    return dense(f"{ours}.fc1", f"{theirs}/Dense_0") + dense(f"{ours}.fc2", f"{theirs}/Dense_1")


def dense(ours: str, theirs: str) -> list[table.Row]:
    """Return the rows of a Flax dense layer: its kernel is our weight transposed."""
    weight, kernel = f"{ours}.weight", (f"{theirs}/kernel",)
    transposed = table.Row(weight, kernel, lambda arrays: arrays[0].mT, lambda tensor: [tensor.mT])
    return [transposed, table.renamed(f"{ours}.bias", f"{theirs}/bias")]


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
