"""Load checkpoints: recognise the format, account for every key, and return notes for the user.

The order is: find the format, read the file's description (architecture and card), translate its tensors into
vitkit's names, check them against the architecture, and only then fit them to the options of the user:
`fit_weights` changes the channels, the pixel statistics, the head and the image size. Functions that change
weights or card for that are called `fit_...`; functions that change the configuration alone `with_...`.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.build import build_empty
from vitkit.models.config import INTERPOLATIONS, Levels, ModelConfig, height_and_width
from vitkit.models.image_model import ImageModel
from vitkit.models.novelty import Novelty, explain_misfit
from vitkit.models.zoo import name_of, with_channels, with_image_size, with_statistics
from vitkit.text import format_size
from vitkit.weights import published, table
from vitkit.weights.files import download
from vitkit.weights.files.checksum import Checksum
from vitkit.weights.files.source import Source, file_states, open_source
from vitkit.weights.format_names import MODULES, Format, LoadOptions
from vitkit.weights.model_card import NOVELTY, ModelCard, fit_preprocessing

NAMES_SHOWN = 5
"""Names of tensors in a message, before it says that there are more: a note is one line."""
LINES_SHOWN = 20
"""Lines of an error's table before it is cut short: two blocks, enough to see a pattern."""
WEIGHT_TYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""The types whose numbers are weights as they stand. Others (integers, eight-bit floats) stand for weights by
a rule that the file does not record, a scale for instance."""


@dataclass(frozen=True)
class Identity:
    """The description of a checkpoint without its weights: format, architecture, card and notes."""

    file: Path
    """The file of weights; for an address, the copy that was fetched."""
    format: str
    """The name of its format: a key of `vitkit.weights.format_names.MODULES`, or "authors"."""
    config: ModelConfig
    card: ModelCard
    left_out: dict[str, list[str]]
    """Reason -> keys of the file that are not used."""
    notes: tuple[str, ...] = ()
    """The choices and assumptions made when the file was read, each a clause after its path."""
    checksum: Checksum | None = None
    """The size and hashes that `model.json` records of the weights; size and XXH3 were compared."""


@dataclass(frozen=True)
class Loaded:
    """A model with the weights of a checkpoint, with the checkpoint's description and notes."""

    model: ImageModel
    identity: Identity
    """The checkpoint as it stands in the file, before it is fitted to another head or image size."""
    notes: tuple[str, ...]
    """Notes for the user: what was chosen, assumed, resized or looks wrong, the notes of `identity` first.
    Each is the rest of a line that begins with the checkpoint's path and a colon."""


@dataclass(frozen=True)
class Fitted:
    """The weights of a checkpoint, fitted to other channels, pixel statistics, head and image size."""

    tensors: dict[str, Tensor]
    card: ModelCard
    notes: tuple[str, ...]
    model: ImageModel
    """The model that was given to `fit_weights`, else one for these weights that was built without memory."""
    novelty: dict[str, Tensor] = field(default_factory=dict)
    """The tensors of its `Novelty`; none where it has none, or is fitted to something else than it was."""


def load(path: str | Path, options: LoadOptions | None = None) -> Loaded:
    """Load a checkpoint; return the model with the checkpoint's description and notes.

    Args:
        path: as for `vitkit.load_model`, which logs the notes and returns the model alone; but a run folder
            must be that of a run that has ended.
        options: another head, image size or pixel statistics; left out, the checkpoint is loaded as it is.

    Raises:
        VitkitError: as `vitkit.load_model`.
    """
    options = options or LoadOptions()
    opened = OpenCheckpoint(path, options)
    return fit_model(path, opened.identity, opened.read(), options)


def identify(path: str | Path, options: LoadOptions | None = None) -> Identity:
    """Describe a checkpoint: format, architecture, numerics, card. The weights stay on the disk.

    Args:
        path: as for `load`.
        options: image size and number of heads, where the file does not record them.

    Raises:
        VitkitError: as `vitkit.load_model`.
    """
    with OpenCheckpoint(path, options or LoadOptions()) as opened:
        return opened.identity


class OpenCheckpoint(ExitStack):
    """A checkpoint that is described first, and whose weights are read later from the file that was verified.

    It stays open in between. A file that is written to or replaced meanwhile is refused, as it is not the one
    whose checksum was compared.
    """

    def __init__(self, path: str | Path, options: LoadOptions) -> None:
        """Open and describe a checkpoint.

        Args:
            path: as for `load`.
            options: image size and number of heads, where the file does not record them.

        Raises:
            VitkitError: as `vitkit.load_model`.
        """
        super().__init__()
        fetched, self._path = download.fetch(path), path
        # The user's image size goes before the size in the list of published checkpoints.
        hints = table.Hints(height_and_width(options.image_size) or fetched.image_size, options.num_heads)
        with ExitStack() as stack:  # closed again where the file has no description
            source = self._source = stack.enter_context(open_source(fetched.path))
            self.files = source.files
            """The files of its weights, an index of shards first."""
            if (checkpoint_format := table.recognise(source)) is None:
                first = ", ".join(sorted(source.shapes)[:3])
                raise VitkitError(
                    f"{source.path} holds no model we know: {len(source.shapes)} tensors (first: {first})."
                    f"{table.named_prefix(source)} Known are the formats of {', '.join(MODULES)}, and "
                    "files of DINOv2, MAE and open_clip."
                )
            try:
                translation = self._translation = checkpoint_format.read(source, hints)
            except VitkitError as error:
                # The configuration may be another file beside it, which the error then names.
                named = Path(str(error).partition(": ")[0])
                beside = named.parent == source.path.parent and named.is_file()
                if beside or str(error).startswith(str(source.path)):
                    raise
                raise VitkitError(f"{source.path}: {error}") from error
            heads = translation.config.num_heads
            # A model with the wrong heads computes without complaint, and its answers are worth nothing.
            if hints.num_heads not in (None, heads):
                raise VitkitError(
                    f"{source.path} says that it has {heads} attention heads, not {hints.num_heads}: leave "
                    "out num_heads (--num-heads)."
                )
            self.enter_context(stack.pop_all())
        card, notes = translation.card, list(source.notes)
        if Path(path).exists() and any(start.name == str(path) for start in published.table()):
            notes.append(
                "this file or folder has the name of a published checkpoint and is used in its place; for "
                "the published one give its address, which vitkit starts shows"
            )
        # A model of vitkit has its name and origin in `model.json`. Of any other, the origin is made here.
        if checkpoint_format.name != "vitkit":
            notes += card.origin.get("notes", [])
            made = {"file": source.path.name, "dialect": checkpoint_format.name}
            origin = {**made, **fetched.origin, **card.origin}
            card = replace(card, name=card.name or name_of(translation.config), origin=origin)
        elif "source" not in card.origin:  # the address it was fetched from, unless a source is recorded
            card = replace(card, origin={**card.origin, **fetched.origin})
        left_out: dict[str, list[str]] = {}
        for key, reason in translation.ignored.items():
            if key in source.shapes:
                left_out.setdefault(reason, []).append(key)
        name, config, checksum = checkpoint_format.name, translation.config, translation.checksum
        self.identity = Identity(source.path, name, config, card, left_out, tuple(notes), checksum)

    def read(self) -> dict[str, Tensor]:
        """Read the tensors under vitkit's names, one at a time, so that no two sets of weights are held, and
        close the file.

        Raises:
            VitkitError: a key is missing, or unexpected and not left out on purpose: a table of all of them;
                or a tensor holds anything but floating-point numbers of 16 to 64 bits; or the file was
                changed since it was opened.
        """
        source, rows = self._translation.source or self._source, self._translation.rows
        with self:
            names = [name for row in rows for name in row.theirs]
            missing = [f"  {name}: missing" for name in names if name not in source.shapes]
            accounted = {*names, *self._translation.ignored}
            extra = [name for name in source.shapes if name not in accounted]
            unexpected = [f"  {name}: unexpected, {tuple(source.shapes[name])}" for name in extra]
            if missing or unexpected:
                raise VitkitError(
                    f"{source.path} does not hold the weights of this architecture, {len(missing)} of "
                    f"{len(names)} missing, {len(unexpected)} unexpected:\n{_table(missing + unexpected)}"
                )
            # float32 is the type in which the originals compute.
            dtype = None if self._translation.as_stored else torch.float32
            tensors = {row.ours: _read_row(source, row, dtype) for row in rows}
            states = None
            with suppress(OSError):
                states = file_states(self.files)
        if states == self._source.states:
            return tensors
        raise VitkitError(
            f"{self._path} was changed while it was looked at. Give the same command again when it is whole."
        )


def _read_row(source: Source, row: table.Row, dtype: torch.dtype | None) -> Tensor:
    """Read the tensors of one row, whose numbers are weights, and make the parameter of them."""
    tensors = []
    for name in row.theirs:
        tensor = source.read(name)
        if tensor.dtype not in WEIGHT_TYPES:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise VitkitError(
                f"{source.path}: {name}: expected floating-point weights of 16 to 64 bits, found {kind}. If "
                "the model is quantised, dequantise it with the program that quantised it, and save it as "
                "float32."
            )
        tensors.append(tensor)
    try:
        tensor = row.read(tensors)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        shapes = ", ".join(f"{name} {tuple(source.shapes[name])}" for name in row.theirs)
        raise VitkitError(
            f"{source.path}: {row.ours} cannot be made of {shapes}: these are the shapes of another "
            f"architecture ({str(error).splitlines()[0]})."
        ) from error
    tensor = tensor.to(dtype or tensor.dtype).contiguous()
    # What an archive stores begins at any byte. Most rows turn or join what they read, which copies it; what
    # is used as it stands has to begin at a multiple of its numbers' size, as compiled code expects.
    return tensor if tensor.data_ptr() % tensor.element_size() == 0 else tensor.clone()


def build_checked(config: ModelConfig, tensors: Mapping[str, Tensor], source: str) -> ImageModel:
    """Build the model of `config` without memory, and refuse tensors that are not exactly its parameters.

    Raises:
        VitkitError: a parameter is missing, unexpected or of another shape: a table of all of them.
    """
    layers = config.num_layers
    if layers > len(tensors):  # before a model of so many is built, which takes its time
        raise VitkitError(
            f"{source} does not hold the weights of this model: its description says {layers:,} layers, and "
            f"it has {len(tensors):,} tensors."
        )
    model = build_empty(config)
    expected = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    actual = {key: tuple(value.shape) for key, value in tensors.items()}
    lines = [
        f"  {key}: expected {expected.get(key, 'nothing')}, found {actual.get(key, 'nothing')}"
        for key in sorted(expected.keys() | actual.keys())
        if expected.get(key) != actual.get(key)
    ]
    if lines:
        raise VitkitError(f"{source} does not hold the weights of this model:\n{_table(lines)}")
    return model


def _table(lines: Sequence[str]) -> str:
    """Join the lines of an error, cut short after `LINES_SHOWN`."""
    more = [f"  and {len(lines) - LINES_SHOWN} more"] if len(lines) > LINES_SHOWN else []
    return "\n".join([*lines[:LINES_SHOWN], *more])


def find_doubts(tensors: Mapping[str, Tensor]) -> list[str]:
    """List doubts about the numbers of the weights: NaN, infinity, a head that is all zeros."""
    # A sum shows NaN and infinity in one pass over the memory: in float32 at least, for in 16 bits it
    # overflows soon. It may overflow all the same, so only suspects are looked at number by number.
    broken = [
        name
        for name, tensor in tensors.items()
        if not tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32)).isfinite()
        and not tensor.isfinite().all()
    ]
    doubts = []
    if broken:
        shown = ", ".join(broken[:NAMES_SHOWN]) + (", ..." if len(broken) > NAMES_SHOWN else "")
        doubts.append(
            f"{len(broken)} of its {len(tensors)} tensors hold NaN or infinity ({shown}): its predictions "
            "are worthless. Its training diverged or the file was damaged: take an earlier checkpoint, or "
            "fetch it again"
        )
    # The original begins with a head of zeros, so a head that is still zero was never trained.
    if "head.weight" in tensors and not tensors["head.weight"].any():
        doubts.append("its head is all zeros: it was never trained, and all classes look alike")
    return doubts


def fit_model(
    path: str | Path, identity: Identity, tensors: dict[str, Tensor], options: LoadOptions
) -> Loaded:
    """Make a model of weights that were read, fitted to the options.

    Args:
        path: of the checkpoint, for errors.
        identity: its description.
        tensors: its weights, by vitkit's names.
        options: as for `load`.

    Raises:
        VitkitError: they are not the weights of the model that `identity` describes, or cannot be fitted to
            the options.
    """
    if options.head == "keep" and options.num_classes not in (None, identity.config.num_classes):
        raise VitkitError(
            f"{path}: its head has {identity.config.num_classes} classes and cannot be kept for "
            f"{options.num_classes}: leave out num_classes, or ask for a new head."
        )
    fitted = fit_weights(str(path), identity.config, identity.card, tensors, options)
    model = fill(fitted.model, fitted.tensors)
    model.card = fitted.card
    if fitted.novelty:
        model.novelty = Novelty(**fitted.novelty)
    return Loaded(model.eval(), identity, (*identity.notes, *fitted.notes))


def fit_weights(
    source: str,
    config: ModelConfig,
    card: ModelCard,
    tensors: dict[str, Tensor],
    options: LoadOptions,
    model: ImageModel | None = None,
) -> Fitted:
    """Fit weights to other channels, pixel statistics, another head and another image size, where given.

    Args:
        source: the checkpoint's name, for errors.
        config, card, tensors: of the checkpoint, as they stand in it.
        options: the same as for `load`.
        model: takes the weights; left out, it is built without memory where positions are resized.

    Raises:
        VitkitError: they are not the weights of such a model, or cannot be fitted to these channels,
            statistics or this image size.
    """
    novelty = {key.removeprefix(NOVELTY): tensors[key] for key in tensors if key.startswith(NOVELTY)}
    tensors = {key: tensor for key, tensor in tensors.items() if not key.startswith(NOVELTY)}
    # Before anything is fitted: a new head or resized positions would hide what is wrong with the file.
    before, checked = config, build_checked(config, tensors, source)
    if (card.refusal is None) != (not novelty):
        raise VitkitError(
            f"{source}: model.json and the weights beside it do not agree whether the model refuses images: "
            "one of them was changed. Copy both again, or train the model again."
        )
    if novelty:
        num_classes, width = checked.state_dict()["head.weight"].shape if config.num_classes else (0, 0)
        if misfit := explain_misfit(novelty, width, num_classes):
            raise VitkitError(f"{source}: novelty: {misfit}.")
    head, size = options.head, height_and_width(options.image_size)
    # Channels come first: the filters are fitted by the statistics that they were trained with, and the
    # given statistics have a value for each of the new channels.
    if options.channels not in (None, config.in_channels):
        config, tensors = fit_channels(config, tensors, options.channels)
    config = with_statistics(config, options.image_mean, options.image_std)
    if options.image_mean is not None and options.image_std is not None:  # then they are assumed no more
        left = tuple(assumption for assumption in card.assumed if assumption.what != "pixel statistics")
        card = replace(card, assumed=left)
    num_classes = config.num_classes if options.num_classes is None else options.num_classes
    is_new = head == "new" or (head is None and num_classes != config.num_classes)
    if is_new:
        # A linear layer of zeros replaces the head, and the tanh layer before it (paper 3.1 and 3.2).
        config = config.with_new_head(num_classes)
        former = ("head.", "pre_logits.")
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(former)}
    # Without the old head, which is not used, and before the new one, whose zeros are no reason for
    # doubt; and after the statistics, which may have been assumed.
    notes = [*(assumption.sentence() for assumption in card.assumed), *find_doubts(tensors)]
    if is_new:
        if num_classes:
            example = next(iter(tensors.values()))  # for the type: a head of the type of the other weights
            tensors["head.weight"] = example.new_zeros(num_classes, config.feature_width)
            tensors["head.bias"] = example.new_zeros(num_classes)
        # The recorded classes, loss and data belong to the head that was replaced.
        card = replace(card, class_names=(), task=None, data=None, levels=None)
    if options.position_interpolation is not None:
        card = replace(card, position_interpolation=options.position_interpolation)
    preprocessing = fit_preprocessing(card.preprocessing, config)
    if size is not None and size != preprocessing.image_size:
        preprocessing = replace(preprocessing, image_size=size)
        resized = with_image_size(config, size)
        if resized.cut_off:
            notes.append(f"{resized.cut_off}: they are cut off")
        (kind, old), (_, new) = config.position_extent, resized.position_extent
        config = resized
        if old != new:  # else these are the same patches of images a little larger or smaller
            # Each position module resizes its own parameters (paper 3.2), so the new model is built, without
            # memory.
            model, rule = model or build_empty(resized), card.position_interpolation
            resized_tensors = model.fit_positions(tensors, old, rule)
            tensors = tensors | resized_tensors
            if resized_tensors:
                notes.append(
                    f"position embeddings resized from {kind} of {format_size(old)} to {format_size(new)} by "
                    f"{INTERPOLATIONS[rule]}; expect lower accuracy than at its own size until it is "
                    "fine-tuned at this one (vitkit finetune)"
                )
    # A card without a preprocessing stays without one: `preprocessing_of` then gives the authors'.
    if card.preprocessing is not None:
        card = replace(card, preprocessing=preprocessing)
    if novelty and (is_new or config != before):  # its scores and their threshold are of the model as it was
        novelty, card = {}, replace(card, refusal=None)
        if not is_new:
            notes.append(
                "no image is refused as none of the classes: that was learned of images of another size, "
                "channels or pixel statistics"
            )
    if card.levels is not None and config != before:
        card = replace(card, levels=Levels((None,) * len(card.levels.thresholds)))
        notes.append(
            "no answer is sure of a level: the thresholds were chosen by images of another size, channels or "
            "pixel statistics"
        )
    fitted = model or (checked if config == before else build_empty(config))
    return Fitted(tensors, card, tuple(notes), fitted, novelty)


def fit_channels(
    config: ModelConfig, tensors: Mapping[str, Tensor], channels: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Fit a configuration and the first filters of its weights to images of another number of channels.

    The rule is timm's (`adapt_input_conv` in `timm/models/_manipulate.py`): for one channel the filters of
    all channels are summed; for any other number they are repeated in turn and scaled by the old number over
    the new one, so that a channel counts less where there are more. Beyond timm, the sum takes the pixel
    statistics of each channel into account, so that a grey image gives the same result as its copy in three
    channels gave: up to rounding where the means are equal, and for a linear patch embedding whatever they
    are.

    A standardised convolution (BiT, hybrids) forgets the scale of its filters. There, the response of each
    filter to a grey image stays the same up to a factor of its own.

    Args:
        config: the model's, with the channels of the weights as they are.
        tensors: the model's parameters, by name. The filters are D of C channels, p x q pixels.
        channels: of the images.

    Raises:
        VitkitError: as `with_channels`.
    """
    name = next(name for name in config.first_filters if name in tensors)
    after, filters = with_channels(config, channels), tensors[name].float()  # (D, C, p, q)
    changed = dict(tensors)
    if channels == 1:
        # w * (x - m) / s, summed over the channels, is w' * (x - m') / s' + b with these w' and b.
        std = torch.tensor(config.image_std).view(-1, 1, 1)
        shift = (after.image_mean[0] - torch.tensor(config.image_mean).view(-1, 1, 1)) / std
        # Only the filters of a patch embedding have a bias and no padding.
        if name == "stem.weight":
            bias = tensors["stem.bias"]
            changed["stem.bias"] = (bias.float() + (filters * shift).sum((1, 2, 3))).to(bias.dtype)
        fitted = (filters * (after.image_std[0] / std)).sum(1, keepdim=True)
    else:
        source = [channel % config.in_channels for channel in range(channels)]
        fitted = filters[:, source] * (config.in_channels / channels)
    return after, changed | {name: fitted.to(tensors[name].dtype)}


def fill(model: ImageModel, tensors: Mapping[str, Tensor]) -> ImageModel:
    """Let a model without memory take over tensors, so that two sets of weights are never held."""
    model.load_state_dict(tensors, assign=True)  # the model takes the tensors themselves: nothing is copied
    for parameter in model.parameters():  # a tensor that is assigned brings its own flag along
        parameter.requires_grad_(True)
    model.compute_buffers()  # they are in no file, and were not computed when the model had no memory
    # Buffers follow the type of the weights, so that a bfloat16 model takes bfloat16 images throughout.
    dtype = next(iter(tensors.values())).dtype
    for name, buffer in list(model.named_buffers()):
        if not buffer.is_floating_point():  # places in a table stay whole numbers
            continue
        owner = model.get_submodule(name.rpartition(".")[0])
        setattr(owner, name.rpartition(".")[2], buffer.to(dtype))
    return model


_log = logging.getLogger("vitkit")


def save_model(model: ImageModel, path: str | Path, format: Format = "vitkit") -> Path:
    """Write a model's weights; log as a warning what the format does not record.

    Args:
        model: what to save, with its `card` (class names, preprocessing, origin) where the format has room.
        path: a folder for "vitkit", "timm" and "huggingface"; a file for "official" and "big_vision" (`.npz`
            is added) and "torchvision" (`.pth`). Folders on the way are made, what is there is replaced.
        format: its name; docs/what-commands-write.md has a table of the formats.

    Returns:
        The path written.

    Raises:
        VitkitError: the format cannot store such a model, or its card names another number of classes.
    """
    written, notes = save(model, path, format)
    for note in notes:
        _log.warning("%s: %s", written, note)
    return written


def save(model: ImageModel, path: str | Path, format: Format = "vitkit") -> tuple[Path, list[str]]:
    """Write a model's weights; return the path written, and phrases of what the format does not record.

    Arguments and errors as in `save_model`.
    """
    path, chosen = Path(path), table.find_format(format)
    if lacking := chosen.unsupported(model.config):
        raise VitkitError(
            f"The {format} format has no place for {'; '.join(lacking)}. "
            "Choose another, or vitkit's own, which keeps everything."
        )
    if (names := len(model.card.class_names)) and names != model.config.num_classes:
        raise VitkitError(
            f"model.card has {names} class names for a model of {model.config.num_classes} classes: mend it."
        )
    lost = chosen.lost_numerics(model.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = [f"the {format} format cannot say: {'; '.join(lost)}"] if lost else []
    return chosen.holdings[model.config.family].write(model, path, notes), notes
