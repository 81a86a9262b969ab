"""The `.npz` format of google-research/big_transfer: the ResNets of BiT, the paper's baseline.

The official format reads and writes it under its own name, as one release beside the other. The names come
from the TensorFlow code that trained them (big_transfer `bit_pytorch/models.py:93-174`).
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import GROUPS, ResNetConfig, usual_stage_channels
from vitkit.models.image_model import ImageModel
from vitkit.text import format_size, join_names
from vitkit.weights import table
from vitkit.weights.files.source import Source, write_npz
from vitkit.weights.model_card import ModelCard

ROOT = "resnet/root_block/standardized_conv2d/kernel"
HEAD = "resnet/head/conv2d"


def recognises(source: Source) -> bool:
    return ROOT in _without_numbers(source)


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ResNet whose arrays have these names and shapes.

    Raises:
        VitkitError: no image size is given: the arrays fit every size, and none is written in the file.
    """
    source = _without_numbers(source)
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
    return table.Translation(config, name_table(config), card, source=source)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write an `.npz` under the names of the released files."""
    return write_npz(path, table.to_file_tensors(model.state_dict(), name_table(model.config)))


def lost_numerics(config: ResNetConfig) -> list[str]:
    """Name what the format does not record: the image size, and numerics that big_transfer's code lacks."""
    usual = ResNetConfig(config.image_size, config.layers, config.num_classes)
    size = f"the image size {format_size(config.image_size)}, which is to be given when the file is loaded"
    names = ("norm_eps", "standardization_eps", "max_pool_padding")
    numerics = ((name, getattr(config, name), getattr(usual, name)) for name in names)
    return [size, *table.differences("the original", *numerics)]


def name_table(config: ResNetConfig) -> list[table.Row]:
    """List every parameter of a ResNet with its name and axes in BiT's release."""
    rows = [_convolution("root", "resnet/root_block")]
    for stage, units in enumerate(config.layers):
        for unit in range(units):
            ours, theirs = f"stages.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                rows += _group_norm(f"{ours}.norm{number}", f"{theirs}/{letter}")
                rows.append(_convolution(f"{ours}.conv{number}", f"{theirs}/{letter}"))
            if unit == 0:  # the channels change in every stage's first unit, in the first stage too
                rows.append(_convolution(f"{ours}.proj", f"{theirs}/a/proj"))
    rows += _group_norm("norm", "resnet")
    if config.num_classes:
        head = table.Row(
            "head.weight",
            (f"{HEAD}/kernel",),  # (1, 1, C, K): a convolution of one pixel, C channels to K classes
            lambda arrays: arrays[0][0, 0].T,
            lambda tensor: [tensor.T[None, None]],
        )
        rows += [head, table.renamed("head.bias", f"{HEAD}/bias")]
    return rows


def _convolution(ours: str, theirs: str) -> table.Row:
    return table.convolution(f"{ours}.weight", f"{theirs}/standardized_conv2d/kernel")


def _group_norm(ours: str, theirs: str) -> list[table.Row]:
    return [
        table.renamed(f"{ours}.weight", f"{theirs}/group_norm/gamma"),
        table.renamed(f"{ours}.bias", f"{theirs}/group_norm/beta"),
    ]


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
