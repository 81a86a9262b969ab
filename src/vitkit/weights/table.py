"""Checkpoint formats as tables of name pairs, read by loading, saving and the accounting of keys alike.

A row is one parameter of vitkit's model, the tensors of the file that it is made of, and the way there and
back. A format is a function that makes the rows, a test that recognises its files, and a list of the parts of
a model that it cannot store.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.models import image_model
from vitkit.models.config import BackboneConfig, ModelConfig, RotaryConfig, ViTConfig
from vitkit.models.measure import outline
from vitkit.text import pluralize
from vitkit.weights import model_card
from vitkit.weights.files.checksum import Checksum
from vitkit.weights.files.source import Source
from vitkit.weights.format_names import MODULES, READ, Format


@dataclass(frozen=True)
class Row:
    """One parameter of a model, the tensors of a file that it is made of, and the way there and back."""

    ours: str
    """The parameter's name in vitkit's model."""
    theirs: tuple[str, ...]
    """The names in the file, in the order in which `read` takes and `write` gives the tensors."""
    read: Callable[[list[Tensor]], Tensor] = lambda tensors: tensors[0]
    """Makes the parameter of the file's tensors, in views where possible."""
    write: Callable[[Tensor], list[Tensor]] = lambda tensor: [tensor]
    """Makes the file's tensors of the parameter: the inverse of `read`."""


class NotRecordedError(VitkitError):
    """A file does not record something that loading needs; the message names the argument that gives it."""

    def __init__(self, message: str) -> None:
        super().__init__(
            f"{message} On the command line, `vitkit convert FILE OUT` takes --num-heads and --image-size, "
            "and writes a model that every command can use."
        )


@dataclass(frozen=True)
class Hints:
    """The image size and number of heads that a user gives for a file that does not record them."""

    image_size: tuple[int, int] | None = None
    """`(height, width)` in pixels that the user gives. Where the file's positions fit its grid exactly, it
    is taken for the size the weights were made for."""
    num_heads: int | None = None
    """Heads of the attention; no shape of a file depends on them."""


@dataclass(frozen=True)
class Translation:
    """A file's architecture, parameters, card and notes, as a format reads them."""

    config: ModelConfig
    rows: list[Row]
    card: model_card.ModelCard
    ignored: Mapping[str, str] = field(default_factory=dict)
    """Keys of the file that are left out on purpose, and why."""
    source: Source | None = None
    """The tensors to read in place of the file's, where the format changes their names first."""
    checksum: Checksum | None = None
    """The size and hashes that `model.json` records of the file of weights."""
    as_stored: bool = False
    """Keep the tensors' types; otherwise all become float32, the type the original computes in."""


@dataclass(frozen=True)
class Holding:
    """One family's models in one format: how they are written, and the parts that the format cannot store.

    write: (model, path, notes) -> the path written. It is called if nothing of the model is unsupported;
        the notes receive the parts of the card that the file cannot record.
    unsupported: parts of the architecture that this format cannot store, as phrases for an error; empty if
        `write` can store it.
    lost_numerics: numerics (epsilons, GELU's form, pixel statistics) that this format does not record, as
        phrases; the weights are stored, but a reader has to know them.
    """

    write: Callable[[image_model.ImageModel, Path, list[str]], Path]
    unsupported: Callable[[Any], Iterable[str]] = lambda config: []
    lost_numerics: Callable[[Any], Iterable[str]] = lambda config: []


@dataclass(frozen=True)
class CheckpointFormat:
    """One way to store a checkpoint.

    recognises: whether a file has this format, from names, shapes and settings alone.
    read: reads architecture, card and rows; raises VitkitError for what vitkit has no model for, and
        NotRecordedError for what the user has to add.
    holdings: the families that can be stored, by name.
    others: why the other families cannot be stored, as a clause after their name.
    is_folder: whether `write` makes a folder; else it makes a file.
    """

    name: str
    recognises: Callable[[Source], bool]
    read: Callable[[Source, Hints], Translation]
    holdings: Mapping[str, Holding]
    others: str = ""
    is_folder: bool = True

    def unsupported(self, config: ModelConfig) -> list[str]:
        """Name the parts of an architecture that the format cannot store; an empty list if `write` can."""
        holding = self.holdings.get(config.family)
        return [f"{config.family}s{self.others}"] if holding is None else list(holding.unsupported(config))

    def lost_numerics(self, config: ModelConfig) -> list[str]:
        """Name the numerics of a configuration that the format does not record."""
        holding = self.holdings.get(config.family)
        return [] if holding is None else list(holding.lost_numerics(config))


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's pixels in [0, 1], red, green, blue: the defaults of timm and
torchvision, and of their files that record no others."""
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
"""The same of OpenAI's CLIP: the defaults of open_clip and of transformers' processors of CLIP and BiT."""


def by_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """Return statistics of red, green and blue, or their mean where the channels are not these."""
    return values if channels == len(values) else (sum(values) / len(values),) * channels


def require_heads(source: Source, heads: int | None, width: int, where: str = "") -> int:
    """Return the number of attention heads, which no shape of a file shows.

    Args:
        source: the file.
        heads: their number, if the file's settings, its format or the user say it.
        width: D, which the heads share.
        where: a clause that says where else the number was looked for.

    Raises:
        NotRecordedError: nothing says it; the message suggests the usual number.
    """
    if heads:
        return heads
    # Heads have 64 numbers in all the paper's models but ViT-H (80).
    usual = f" The usual answer: num_heads={width // 64}, 64 numbers each." if width % 64 == 0 else ""
    raise NotRecordedError(
        f"{source.path}: its tensors do not say how many attention heads share the width of {width}{where}: "
        f"give num_heads.{usual}"
    )


def require_image_size(
    source: Source, size: tuple[int, int] | None, why: str, usual: str = "224"
) -> tuple[int, int]:
    """Return the image size, which nothing in a file shows.

    Args:
        source: the file.
        size: in the file's settings or given by the user.
        why: the reason why it cannot be seen, as a clause.
        usual: sizes of most models.

    Raises:
        NotRecordedError: there is none; the message suggests the usual.
    """
    if size is None:
        raise NotRecordedError(f"{source.path}: {why}: give image_size=(height, width). The usual: {usual}.")
    return size


def image_size_of(
    source: Source,
    patch_size: tuple[int, int],
    count: int,
    given: tuple[int, int] | None,
    backbone: BackboneConfig | None = None,
    prefix: int = 0,
    recorded: tuple[int, int] | None = None,
) -> tuple[tuple[int, int], bool]:
    """Find the image size of position embeddings, and whether the tokens before the patches have some too.

    A number of positions that makes a square is taken for a square, even where the user gives a rectangle of
    as many: nearly all files are of square images, and their positions are resized to the rectangle.

    Args:
        source: the file.
        patch_size: of the model, on the feature map of its backbone.
        count: embeddings.
        given: the size that the user gives.
        backbone: of a hybrid.
        prefix: tokens before the patches, all of them with an embedding, or all without.
        recorded: the size in the file's settings.

    Raises:
        NotRecordedError: no size fits, or there are two readings.
    """

    def side_of(places: int) -> int | None:
        side = math.isqrt(max(places, 0))
        return side if side and side * side == places else None

    usual, other = side_of(count - prefix), side_of(count) if prefix else None
    for size in (recorded, given):
        height, width = (backbone.feature_map(size) if backbone else size) if size else (0, 0)
        rows, columns = height // patch_size[0], width // patch_size[1]
        fits = size == recorded or rows == columns or usual is None
        if size and fits and rows * columns in (count - prefix, count):
            return size, rows * columns == count - prefix
    if usual is not None and other is None:
        stride = backbone.stride if backbone else 1
        return (usual * patch_size[0] * stride, usual * patch_size[1] * stride), True
    readings = "no square grid"
    if prefix:
        shape, without = (
            "a grid that is no square" if side is None else f"a grid of {side}x{side}"
            for side in (usual, other)
        )
        tokens = pluralize(prefix, "token") + " before the patches"
        readings = f"{shape} and {tokens}, or {without} without a position for the {tokens}"
    raise NotRecordedError(
        f"{source.path}: its {count} position embeddings are {readings}, and nothing says for which images "
        "they were made: give image_size=(height, width) (--image-size HEIGHT WIDTH)."
    )


def renamed(ours: str, theirs: str) -> Row:
    """Return the row of a tensor that differs in its name alone."""
    return Row(ours, (theirs,))


def folded_position(token: str, positions: str) -> list[Row]:
    """Return the rows of a class token and the positions of patches, where the first position is the token's.

    It is added to the token, once and for all, so that registers have none where the class token has.
    """
    return [
        Row("class_token", (token, positions), lambda tensors: tensors[0] + tensors[1][:, :1]),
        Row("positions.0.embedding", (positions,), lambda tensors: tensors[0][:, 1:]),
    ]


Names = Mapping[str, str]
"""The names of a format, by ours, of layers and of parameters that are in none.

Our names are without their numbers, which stand as `#` in the format's. Several of its names, with blanks
between them, are a single layer here: queries, keys and values, or gates and values. `weight` and `bias`
follow a name that ends in an underscore without a dot (PyTorch's own attention).
"""
NUMBER = re.compile(r"\.(\d+)")
"""The number of a block, a stage or a unit in our names."""


def named_rows(
    config: ModelConfig, names: Names, unbiased: Collection[str] = (), special: Iterable[Row] = ()
) -> list[Row]:
    """Pair every parameter of a model with the tensors where a format of PyTorch keeps it.

    A parameter without a name has no row: `to_file_tensors` and the check of what was read then refuse it.

    Args:
        config: the model.
        names: of the format.
        unbiased: those of `names` whose layers have no bias, which is read as zeros and written nowhere.
        special: rows that are made in another way.
    """
    rows = {row.ours: row for row in special}
    for ours, parameter in outline(config).state_dict().items():
        part, numbers = NUMBER.sub("", ours), NUMBER.findall(ours)
        layer, _, kind = part.rpartition(".")
        if ours in rows:
            continue
        if part in names:
            rows[ours] = Row(ours, (numbered(names[part], *numbers),), partial(_with_axes, parameter.ndim))
        elif layer in names:
            layers = names[layer].split()
            there = [kind == "weight" or name not in unbiased for name in layers]
            keys = (
                numbered(
                    f"{name}{'' if name.endswith('_') else '.'}{kind if is_there else 'weight'}", *numbers
                )
                for name, is_there in zip(layers, there, strict=True)
            )
            rows[ours] = _joined(ours, tuple(keys), there)
    return list(rows.values())


def numbered(name: str, *numbers: str) -> str:
    """Write numbers into a name of a format."""
    for number in numbers:
        name = name.replace("#", number, 1)
    return name


def _with_axes(axes: int, tensors: list[Tensor]) -> Tensor:
    """Give a tensor the first axes, of length 1, that a file may leave out."""
    return tensors[0][(None,) * (axes - tensors[0].ndim)]


def _joined(ours: str, theirs: tuple[str, ...], there: Sequence[bool]) -> Row:
    """Return the row of tensors that vitkit keeps as one, joined along the first axis: q, k and v.

    A bias that is not there is zeros, as many as the weight in its place has rows.
    """
    if len(theirs) == 1 and all(there):
        return renamed(ours, *theirs)

    def read(tensors: list[Tensor]) -> Tensor:
        parts = zip(tensors, there, strict=True)
        return torch.cat([part if is_there else part.new_zeros(len(part)) for part, is_there in parts])

    return Row(ours, theirs, read, lambda tensor: list(tensor.chunk(len(theirs))))


def read_sizes(source: Source, names: Names) -> dict[str, Any]:
    """Read the fields of a `ViTConfig` that the shapes of its tensors show.

    Raises:
        VitkitError: the projection of patches or the MLP of the first block are missing, or have other axes.
    """
    parts = ("stem", "blocks.mlp.fc1", "blocks.mlp.fc2")
    keys = [f"{numbered(name, '0')}.weight" for part in parts for name in names[part].split()]
    for key in keys:
        check_axes(source, key, 4 if key == keys[0] else 2)
    width, channels, *patch = source.shapes[keys[0]]
    blocks = re.escape(names["blocks.mlp.fc2"].partition("#")[0])
    return {
        "width": width,
        "in_channels": channels,
        "patch_size": tuple(patch),
        "depth": count_layers(source, rf"{blocks}(\d+)\."),
        "mlp_dim": source.shapes[keys[-1]][1],
    }


TEXTS = "the tower for texts: images alone are read here"
OF_WHOLE_MODELS = (
    (r"(text_model|text_projection)\.", TEXTS),
    (r"logit_(scale|bias)", "the scale of comparisons with texts, which are not read here"),
    (r"decoder[._]", "the decoder of masked image modelling, which nothing here uses"),
)
"""Patterns of the names that whole models have beside those of a ViT, and why they are left out."""
LEFT_OUT = (
    (r".*(\.position_ids|relative_position_index)$", "numbers of positions, which follow from the sizes"),
    (r"(.*\.)?mask_token$", "the mask token of masked image modelling, which nothing here uses"),
)
"""The same of names in any file; no row names them."""


def left_out(source: Source, rows: Iterable[Row], more: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Name the tensors that are left out on purpose, and why, by `LEFT_OUT` and by `more` patterns."""
    used = {name for row in rows for name in row.theirs}
    ignored: dict[str, str] = {}
    for pattern, reason in (*LEFT_OUT, *more):
        for key in source.shapes:
            if key not in used and re.match(pattern, key):
                ignored.setdefault(key, reason)
    if TEXTS in ignored.values():
        source.notes.append("its tower for texts is left aside: images alone are read here")
    return ignored


ANY_VALUE = {
    *("in_channels", "stem_strides", "representation_size", "dropout", "attention_dropout", "drop_path"),
    *("gelu", "norm_eps", "image_mean", "image_std"),
}
"""Fields of a ViT that have any value here, and of which each format says itself what it cannot store."""
PLAIN: Mapping[str, Collection[Any]] = {
    name: (getattr(ViTConfig, name),)
    for name in ViTConfig.__dataclass_fields__
    if hasattr(ViTConfig, name) and name not in ANY_VALUE
}
"""The ViT of the paper's section 3.1, which every format can store: the values of its other fields."""


def unsupported_values(config: ModelConfig, storable: Mapping[str, Collection[Any]]) -> list[str]:
    """List, as phrases, the fields of a configuration whose values a format cannot store."""
    return [
        f"{name} {_word(getattr(config, name))} (only {' or '.join(map(_word, values))})"
        for name, values in storable.items()
        if getattr(config, name) not in values
    ]


def _word(value: Any) -> str:
    if isinstance(value, BackboneConfig):
        return f"of {value.layers} units"
    if isinstance(value, RotaryConfig):
        return "positions"
    return "none" if value is None or value == () else str(value)


def differences(origin: str, *numerics: tuple[str, object, object]) -> list[str]:
    """Name the numbers and forms, each with vitkit's value and the origin's, in which the two differ."""
    return [f"{what} {ours} ({origin}: {theirs})" for what, ours, theirs in numerics if ours != theirs]


def training_alone(config: ViTConfig) -> Iterator[str]:
    """Name the parts of a ViT that act in training alone, which the arrays of a file do not show."""
    if config.dropout or config.attention_dropout:
        yield f"dropout {max(config.dropout, config.attention_dropout):g}, which training alone uses"
    if config.drop_path:
        yield f"stochastic depth {config.drop_path:g}, which training alone uses"


def to_file_tensors(tensors: Mapping[str, Tensor], rows: Iterable[Row]) -> dict[str, Tensor]:
    """Give vitkit's tensors the names and shapes of a format: views where possible, so it costs no memory.

    Args:
        tensors: the parameters of a model, by vitkit's names.
        rows: the format's table.

    Raises:
        VitkitError: a tensor has no row: without it the file would hold another model.
    """
    theirs: dict[str, Tensor] = {}
    rows = list(rows)
    if unnamed := tensors.keys() - {row.ours for row in rows}:
        raise VitkitError(
            f"This format has no name for {', '.join(sorted(unnamed))}. Choose another, or vitkit's own, "
            "which keeps everything."
        )
    for row in rows:
        parts = row.write(tensors[row.ours].detach())
        theirs |= dict(zip(row.theirs, parts, strict=True))
    return theirs


def count_layers(source: Source, pattern: str) -> int:
    """Count the different numbers at one position of the names, which the pattern's group matches."""
    matcher = re.compile(pattern)
    return len({match[1] for key in source.shapes if (match := matcher.match(key))})


def count_units(source: Source, prefix: str) -> tuple[int, ...]:
    """Count the units in each stage of a ResNet by the names of its arrays."""
    matches = [re.match(prefix + r"block(\d{1,3})/unit(\d{1,3})/", key) for key in source.shapes]
    units = {(int(match[1]), int(match[2])) for match in matches if match}
    stages = range(1, max((stage for stage, _ in units), default=0) + 1)
    return tuple(sum(stage == number for stage, _ in units) for number in stages)


def first_axis(source: Source, key: str, axes: int) -> int:
    """Return the length of an array's first axis, the outputs of a PyTorch layer; 0 where there is none.

    Raises:
        VitkitError: it has another number of axes, or nothing along one of them.
    """
    if key not in source:
        return 0
    check_axes(source, key, axes)
    return source.shapes[key][0]


def count_tokens(source: Source, key: str) -> int:
    """Count the tokens of a tensor (1, N, D), such as registers; 0 where there is none.

    Raises:
        VitkitError: it has another number of axes, or nothing along one of them.
    """
    return source.shapes[key][1] if first_axis(source, key, 3) else 0


def count_outputs(source: Source, layer: str) -> int | None:
    """Count the outputs of a dense layer of Flax; None where there is none."""
    keys = (f"{layer}/kernel", f"{layer}/bias")
    return next((source.shapes[key][-1] for key in keys if source.shapes.get(key)), None)


def check_axes(source: Source, key: str, axes: int) -> None:
    """Refuse an array that cannot be what its name says.

    Raises:
        VitkitError: it has another number of axes, or nothing along one of them.
    """
    if key not in source:
        raise VitkitError(f"{source.path}: {key}: missing, expected an array of {axes} axes.")
    if len(shape := tuple(source.shapes[key])) != axes or 0 in shape:
        empty = ", none of them empty" if len(shape) == axes else ""
        raise VitkitError(f"{source.path}: {key}: expected an array of {axes} axes{empty}, found {shape}.")


FORMATS = "vitkit.weights.formats"
"""The package of the modules that `MODULES` and `READ` name."""
PREFIXES_TRIED = 8
"""Prefixes are tried in the order of how many names have them; a training script adds one or two."""


def recognise(source: Source) -> CheckpointFormat | None:
    """Return the first format that recognises a file, by which it is read; None where none does.

    The formats after it are not imported, so that a model of vitkit's own waits for no other library's names.
    """
    for name in READ:
        candidate: CheckpointFormat = import_module(f"{FORMATS}.{name}").CHECKPOINT_FORMAT
        if candidate.recognises(source):
            return candidate
    return None


def find_format(format: Format) -> CheckpointFormat:
    """Find the format of a name.

    Raises:
        VitkitError: no format has this name; the nearest name is suggested.
    """
    if format not in MODULES:
        raise VitkitError(f"No format is named '{format}'. {nearest(str(format), list(MODULES))}")
    chosen: CheckpointFormat = import_module(f"{FORMATS}.{MODULES[format]}").CHECKPOINT_FORMAT
    return chosen


def named_prefix(source: Source) -> str:
    """Write a sentence about the prefix, put before every name by a training script, that hides a format.

    Empty where no prefix does.
    """
    beginnings: Counter[str] = Counter()
    for key in source.shapes:
        first, dot, rest = key.partition(".")
        second, more, _ = rest.partition(".")
        beginnings.update([f"{first}."] * bool(dot) + [f"{first}.{second}."] * bool(more))
    for prefix, count in beginnings.most_common(PREFIXES_TRIED):
        names = {key.removeprefix(prefix): key for key in source.shapes if key.startswith(prefix)}
        bare = source.renamed(names)
        if (checkpoint_format := recognise(bare)) is not None:
            return (
                f" {count} of its names are {checkpoint_format.name}'s after the prefix '{prefix}': strip "
                f"the prefix '{prefix}' from them, leave the others out, and save the weights again."
            )
    return ""
