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
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import GROUPS, BackboneConfig, ResNetConfig, ViTConfig, usual_stage_channels
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import outline
from vitkit.text import format_size, join_names
from vitkit.weights import table
from vitkit.weights.files.source import Source, write_npz
from vitkit.weights.model_card import ModelCard

HEAD = "resnet/head/conv2d"
UNIT = "resnet/block{0}/unit{1:02d}/"
BIT_NAMES: table.Names = {
    "root": "resnet/root_block/standardized_conv2d",
    "norm": "resnet/group_norm",
    "head": HEAD,
    "stages.proj": f"{UNIT}a/proj/standardized_conv2d",
    **{f"stages.conv{n}": f"{UNIT}{letter}/standardized_conv2d" for n, letter in enumerate("abc", start=1)},
    **{f"stages.norm{n}": f"{UNIT}{letter}/group_norm" for n, letter in enumerate("abc", start=1)},
}
"""The layers of a ResNet, and their names in BiT's release; `rows_of` writes the numbers."""
ROOT = f"{BIT_NAMES['root']}/kernel"


def _read_bit(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ResNet whose arrays have these names and shapes.

    Raises:
        VitkitError: no image size is given: the arrays fit every size, and none is written in the file.
    """
    why, usual = "a BiT file does not say which images it is for", "224, and 480 where fine-tuned on ImageNet"
    image_size = table.require_image_size(source, hints.image_size, why, usual)
    shapes = source.shapes
    table.check_axes(source, ROOT, 4)
    in_channels, root_channels = shapes[ROOT][2:]
    config = ResNetConfig(
        image_size=image_size,
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
    return table.Translation(config, rows_of(config, BIT_NAMES), card, source=source)


def _lost_of_bit(config: ResNetConfig) -> list[str]:
    """Name what the format does not record: the image size, and numerics that big_transfer's code lacks."""
    usual = ResNetConfig(config.image_size, config.layers, config.num_classes)
    size = f"the image size {format_size(config.image_size)}, which is to be given when the file is loaded"
    names = ("norm_eps", "standardization_eps", "max_pool_padding")
    numerics = ((name, getattr(config, name), getattr(usual, name)) for name in names)
    return [size, *table.differences("the original", *numerics), *lost_pixels(config)]


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
    yield from table.unsupported_values(config, {"mixing": ("convolution",), "groups": (GROUPS,)})
    if not has_usual_channels(config):
        yield f"root_width {config.root_channels} with stage_widths {config.stage_channels}"


def absent_from_libraries(config: ResNetConfig) -> Iterator[str]:
    """Name the parts that neither timm nor transformers can build.

    Both round the channels of a bottleneck to a multiple of 8, and both have a projection in the first unit
    of every stage, which a ResNet here has only where the sizes change.
    """
    yield from table.unsupported_values(config, {"mixing": ("convolution",)})
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


def attention_and_mlp(ours: str, attention: str, mlp: str) -> table.Names:
    """Name the layers of an attention and of an MLP by the names of these two."""
    return {
        f"{ours}.attention.qkv": f"{attention}/query {attention}/key {attention}/value",
        f"{ours}.attention.out": f"{attention}/out",
        f"{ours}.mlp.fc1": f"{mlp}/Dense_0",
        f"{ours}.mlp.fc2": f"{mlp}/Dense_1",
    }


BLOCK = "Transformer/encoderblock_{0}/"
RELEASED: table.Names = {
    "stem": "embedding",
    "stem.projection": "embedding",
    "stem.root": "conv_root",
    "stem.root_norm": "gn_root",
    **{f"stem.stages.conv{n}": f"block{{0}}/unit{{1}}/conv{n}" for n in (1, 2, 3)},
    **{f"stem.stages.norm{n}": f"block{{0}}/unit{{1}}/gn{n}" for n in (1, 2, 3)},
    "stem.stages.proj": "block{0}/unit{1}/conv_proj",
    "stem.stages.proj_norm": "block{0}/unit{1}/gn_proj",
    "class_token": "cls",
    "positions.embedding": POSITION,
    "blocks.norm1": f"{BLOCK}LayerNorm_0",
    "blocks.norm2": f"{BLOCK}LayerNorm_2",
    **attention_and_mlp("blocks", f"{BLOCK}MultiHeadDotProductAttention_1", f"{BLOCK}MlpBlock_3"),
    "norm": "Transformer/encoder_norm",
    "pre_logits": "pre_logits",
    "head": "head",
}
"""The parts of ViTs and hybrids, and the released files' names for them."""
LINEN: table.Names = {
    **RELEASED,
    "blocks.norm2": f"{BLOCK}LayerNorm_1",
    **attention_and_mlp("blocks", f"{BLOCK}MultiHeadDotProductAttention_0", f"{BLOCK}MlpBlock_0"),
}
"""The same in today's code."""


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
    rows = rows_of(config, BIT_NAMES) if config.family == "ResNet" else name_table(config, RELEASED)
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
    shapes, names = source.shapes, naming_of(source)
    heads = _kernel_of_queries(names)
    hidden = f"{names['blocks.mlp.fc1']}/kernel".format(0)
    for key, axes in (("embedding/kernel", 4), (heads, 3), (hidden, 2)):
        table.check_axes(source, key, axes)
    patch_height, patch_width, in_channels, width = shapes["embedding/kernel"]
    backbone = None
    if "conv_root/kernel" in source:
        table.check_axes(source, "conv_root/kernel", 4)
        factor = shapes["conv_root/kernel"][-1] / 64
        backbone = BackboneConfig(table.count_units(source, ""), width_factor=factor)
        in_channels = shapes["conv_root/kernel"][-2]
    stride = backbone.stride if backbone else 1
    return ViTConfig(
        image_size=(patch_height * stride, patch_width * stride),
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


def naming_of(source: Source) -> table.Names:
    """Recognise which of the two namings a file follows."""
    return LINEN if _kernel_of_queries(LINEN) in source else RELEASED


def _kernel_of_queries(names: table.Names) -> str:
    """Return the name of the first block's projection to queries."""
    return f"{names['blocks.attention.qkv'].split()[0]}/kernel".format(0)


def name_table(config: ViTConfig, naming: table.Names) -> list[table.Row]:
    """List every parameter of a ViT or hybrid with its name and axes in the original release."""
    rows = rows_of(config, naming)
    if config.class_token and not config.class_token_position:
        at = next(at for at, row in enumerate(rows) if row.ours == "positions.0.embedding")
        rows[at] = replace(rows[at], write=lambda patches: [F.pad(patches, (0, 0, 1, 0))])
    return rows


def rows_of(config: ViTConfig | ResNetConfig, names: table.Names) -> list[table.Row]:
    """Pair every parameter of a model with the arrays where a format of Flax or TensorFlow keeps it.

    Args:
        config: the model.
        names: of the format, with places for the numbers of stages and units, from 1, or of blocks, from 0.
    """
    of_layers, of_norms = {"weight": "kernel", "bias": "bias"}, {"weight": "scale", "bias": "bias"}
    if config.family == "ResNet":
        of_norms = {"weight": "gamma", "bias": "beta"}
    rows = []
    for ours, parameter in outline(config).state_dict().items():
        part, numbers = table.NUMBER.sub("", ours), table.NUMBER.findall(ours)
        layer, _, kind = part.rpartition(".")
        if part in names:
            rows.append(table.renamed(ours, names[part]))
        elif layer in names:
            name = (of_norms if "norm" in layer else of_layers)[kind]
            first = 1 if "stages." in ours else 0
            places = [int(number) + first for number in numbers]
            keys = tuple(f"{each}/{name}".format(*places) for each in names[layer].split())
            rows.append(_row(config, ours, layer, keys, tuple(parameter.shape)))
    return rows


def _row(config: Any, ours: str, layer: str, theirs: tuple[str, ...], shape: tuple[int, ...]) -> table.Row:
    """Return the row of a layer's weight or bias: in the file the axes of the inputs come first."""
    if len(shape) == 4:  # (height, width, in, out) -> (out, in, height, width)
        return table.Row(
            ours,
            theirs,
            lambda arrays: arrays[0].permute(3, 2, 0, 1),
            lambda tensor: [tensor.permute(2, 3, 1, 0)],
        )
    is_qkv, there = layer.endswith("attention.qkv"), shape[::-1]
    if is_qkv:  # each (D, heads, head_dim), its bias (heads, head_dim)
        there = (*shape[1:], config.num_heads, config.head_dim)
    elif layer.endswith("attention.out") and len(shape) == 2:
        there = (config.num_heads, config.head_dim, shape[0])
    elif layer.startswith("stem.") and "norm" in layer:  # (C,) in today's code
        there = (1, 1, 1, *shape)
    elif config.family == "ResNet" and len(shape) == 2:  # a convolution of one pixel
        there = (1, 1, *there)

    def read(arrays: list[Tensor]) -> Tensor:
        if len(shape) == 1:
            return torch.cat([array.flatten() for array in arrays])
        return torch.cat([(array.flatten(1) if is_qkv else array.flatten(0, -2)).T for array in arrays])

    return table.Row(
        ours, theirs, read, lambda tensor: [part.t().reshape(there) for part in tensor.chunk(len(theirs))]
    )
