"""Loading a checkpoint: its format is found, every key accounted for, what the user should know returned.

The order is: find the format, read the file's description (architecture and card), translate its tensors into
vitkit's names, check them against the architecture, and only then replace the head or resize positions.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from vitkit.data.transforms_config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models import channels_config
from vitkit.models.build import build_empty, build_model
from vitkit.models.channels import fit_filters
from vitkit.models.channels_config import with_channels, with_image_size
from vitkit.models.image_config import format_size
from vitkit.models.image_model import ImageModel
from vitkit.models.vit_config import Interpolation
from vitkit.models.zoo import ModelConfig, name_of
from vitkit.weights.accounting import build, check, names_that_are_not_finite, translate
from vitkit.weights.card import ModelCard
from vitkit.weights.files.checksum import Checksum
from vitkit.weights.files.named import fetch_any
from vitkit.weights.files.source import Source, open_source
from vitkit.weights.format_names import MODULES
from vitkit.weights.formats import native
from vitkit.weights.formats.known import named_prefix, recognise
from vitkit.weights.load_options import LoadOptions
from vitkit.weights.preprocessing import fitting
from vitkit.weights.published import hides_published
from vitkit.weights.table import CheckpointFormat, Hints, NotRecordedError, Translation

NAMES_SHOWN = 5
"""Names of tensors in a message, before it says that there are more."""

_log = logging.getLogger("vitkit")


@dataclass(frozen=True)
class Identity:
    """The description of a checkpoint without its weights: format, architecture, card and notes."""

    file: Path
    """The file of weights; for an address, the copy that was fetched."""
    format: str
    """The name of its format, one of `vitkit.weights.FORMATS`."""
    config: ModelConfig
    card: ModelCard
    left_out: dict[str, list[str]]
    """Reason -> keys of the file that are not used."""
    notes: tuple[str, ...] = ()
    """The choices and assumptions made when the file was read, in words that follow its path."""
    checksum: Checksum | None = None
    """The size and hashes that `model.json` records of the weights; size and XXH3 were compared."""


@dataclass(frozen=True)
class Loaded:
    """A model with the weights of a checkpoint, and what was found on the way."""

    model: ImageModel
    identity: Identity
    """The checkpoint as it stands in the file, before another head or image size was asked for."""
    notes: tuple[str, ...]
    """Notes for the user: what was chosen, assumed, resized or looks wrong, those of `identity` first.
    Each is the rest of a line that begins with the checkpoint's path and a colon."""


def load(path: str | Path, options: LoadOptions | None = None) -> Loaded:
    """Load a checkpoint, and return with the model what was found on the way.

    Args:
        path: as for `vitkit.load_model`, which logs the notes and returns the model alone; but a run folder
            must be that of a run that has ended.
        options: another head, image size or pixel statistics; left out, the checkpoint is loaded as it is.

    Raises:
        VitkitError: as `vitkit.load_model`.
    """
    options = options or LoadOptions()
    with _opened(path, Hints(options.size, options.num_heads)) as (source, identity, translation):
        _refuse_kept_head(path, identity, options)
        tensors = translate(source, translation)
    return fit_to_options(path, identity, tensors, options)


def fit_to_options(
    path: str | Path, identity: Identity, tensors: dict[str, Tensor], options: LoadOptions
) -> Loaded:
    """Make a model of weights that were read: with another head, at another image size, where asked for.

    Args:
        path: where they come from, for errors.
        identity: what they are.
        tensors: by our names.
        options: as for `load`.

    Raises:
        VitkitError: they are not the weights of the model that `identity` describes, or cannot be made to
            fit the options.
    """
    _refuse_kept_head(path, identity, options)
    # Before a new head or other positions are made to fit, which would hide what is wrong with the file.
    check(identity.config, tensors, str(path))
    adapted = adapt(identity.config, identity.card, tensors, options)
    model = build(adapted.config, adapted.tensors, str(path))
    model.card = adapted.card
    return Loaded(model.eval(), identity, (*identity.notes, *adapted.notes))


def read_weights(path: str | Path, num_heads: int | None = None) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint under our names, every one accounted for; the model is not built.

    Raises:
        VitkitError: as `vitkit.load_model`.
    """
    with _opened(path, Hints(None, num_heads)) as (source, identity, translation):
        tensors = translate(source, translation)
    check(identity.config, tensors, str(path))
    return tensors


@dataclass(frozen=True)
class Adapted:
    """The weights of a checkpoint, made to fit another head and image size."""

    config: ModelConfig
    tensors: dict[str, Tensor]
    card: ModelCard
    notes: tuple[str, ...]


def adapt(config: ModelConfig, card: ModelCard, tensors: dict[str, Tensor], options: LoadOptions) -> Adapted:
    """Put in what is given in `options`: pixel statistics, another head, another image size.

    Args:
        config, card, tensors: of the checkpoint, as they stand in it.
        options: the same as for `load`.
    """
    head, num_classes, size = options.head, options.num_classes, options.size
    if options.channels not in (None, config.in_channels):
        tensors = fit_filters(config, tensors, options.channels)
        config = with_channels(config, options.channels)
    config, card = with_statistics(config, card, options)
    notes = [*(assumption.sentence() for assumption in card.assumed), *_doubts(tensors)]
    if num_classes is None:
        num_classes = config.num_classes
    if head == "new" or (head is None and num_classes != config.num_classes):
        config, tensors = _with_new_head(config, tensors, num_classes)
        # The recorded classes, loss and data are those of the head that was replaced.
        card = replace(card, class_names=(), task=None, data=None)
    # The original begins with a head of zeros, so a head that is still zero was never trained.
    elif "head.weight" in tensors and not tensors["head.weight"].any():
        notes.append("its head is all zeros: it was never trained, and all classes look alike")
    preprocessing = fitting(card.preprocessing, config)
    if size is not None and size != preprocessing.image_size:
        preprocessing = replace(preprocessing, image_size=size)
        config, tensors = _made_for(preprocessing, config, tensors, options.interpolation, notes)
    if card.preprocessing is not None:  # where nothing is recorded, nothing was assumed either
        card = replace(card, preprocessing=preprocessing)
    return Adapted(config, tensors, card, tuple(notes))


def _refuse_kept_head(path: str | Path, identity: Identity, options: LoadOptions) -> None:
    if options.head == "keep" and options.num_classes not in (None, identity.config.num_classes):
        raise VitkitError(
            f"{path}: its head has {identity.config.num_classes} classes and cannot be kept for "
            f"{options.num_classes}: leave out num_classes, or ask for a new head."
        )


def log_notes(path: str | Path, loaded: Loaded) -> ImageModel:
    """Log what the user should know about a checkpoint, as warnings; returns the model."""
    for reason, keys in loaded.identity.left_out.items():
        _log.info("%s: left out on purpose, %s: %s", path, reason, ", ".join(keys))
    for note in loaded.notes:
        _log.warning("%s: %s", path, note)
    return loaded.model


def identify(path: str | Path, options: LoadOptions | None = None) -> Identity:
    """Describe a checkpoint: format, architecture, numerics, card. The weights stay on the disk.

    Args:
        path: as for `load`.
        options: image size and number of heads, where the file does not record them.

    Raises:
        VitkitError: as `vitkit.load_model`.
    """
    hints = Hints() if options is None else Hints(options.size, options.num_heads)
    with _opened(path, hints) as (_source, identity, _translation):
        return identity


@contextmanager
def _opened(path: str | Path, hints: Hints) -> Iterator[tuple[Source, Identity, Translation]]:
    """Open a checkpoint and read its description; its tensors can be read within."""
    fetched = fetch_any(path)
    hints = replace(hints, image_size=hints.image_size or fetched.image_size)
    with open_source(fetched.path) as source:
        found = recognise(source)
        if found is None:
            first = ", ".join(sorted(source.shapes)[:3])
            raise VitkitError(
                f"{source.path} holds no model we know: {len(source.shapes)} tensors (first: {first})."
                f"{named_prefix(source)} Known are the formats of "
                f"{', '.join(MODULES)}."
            )
        translation = _read(found, source, hints)
        heads = translation.config.num_heads
        if hints.num_heads not in (None, heads):
            raise VitkitError(
                f"{source.path} says that it has {heads} attention heads, not {hints.num_heads}: leave out "
                "num_heads (--num-heads)."
            )
        card = translation.card
        notes = list(source.notes)
        if hides_published(path):
            notes.append(
                "this file or folder has the name of a published checkpoint and is used in its place; for "
                "the published one give its address, which vitkit starts shows"
            )
        # A model of vitkit has its name and origin in `model.json`. Of any other, the origin is made here.
        if found is not native.CHECKPOINT_FORMAT:
            notes += card.origin.get("notes", [])
            origin = {"file": source.path.name, "dialect": found.name, **fetched.origin, **card.origin}
            card = replace(card, name=card.name or name_of(translation.config), origin=origin)
        elif "source" not in card.origin:
            card = replace(card, origin={**card.origin, **fetched.origin})
        left_out: dict[str, list[str]] = {}
        for key, reason in translation.ignored.items():
            if key in source:
                left_out.setdefault(reason, []).append(key)
        identity = Identity(
            source.path,
            found.name,
            translation.config,
            card,
            left_out,
            tuple(notes),
            translation.checksum,
        )
        yield source, identity, translation


def _read(checkpoint_format: CheckpointFormat, source: Source, hints: Hints) -> Translation:
    """Read a file's description; an error in its configuration is raised with the file's path before it."""
    try:
        return checkpoint_format.read(source, hints)
    except NotRecordedError:  # it begins with the path already
        raise
    except VitkitError as error:
        if str(source.path.parent) in str(error):
            raise
        raise VitkitError(f"{source.path}: {error}") from error


def with_statistics(
    config: ModelConfig, card: ModelCard, options: LoadOptions
) -> tuple[ModelConfig, ModelCard]:
    """Replace the pixel statistics by those that are given: a value for each channel, or one for all.

    Raises:
        VitkitError: another number of values, or such as no pixels have.
    """
    mean, std = options.image_mean, options.image_std
    config = channels_config.with_statistics(config, mean, std)
    # With both of them given, nothing about the pixel statistics is assumed any more.
    if mean is not None and std is not None:
        left = tuple(one for one in card.assumed if one.what != "pixel statistics")
        card = replace(card, assumed=left)
    return config, card


def _doubts(tensors: dict[str, Tensor]) -> list[str]:
    """List what looks wrong in the numbers of the weights: NaN and infinity."""
    broken = names_that_are_not_finite(tensors)
    if not broken:
        return []
    shown = ", ".join(broken[:NAMES_SHOWN]) + (", ..." if len(broken) > NAMES_SHOWN else "")
    return [
        f"{len(broken)} of its {len(tensors)} tensors hold NaN or infinity ({shown}): what it predicts is "
        "worth nothing. Its training diverged or the file was damaged: take an earlier checkpoint, or fetch "
        "it again"
    ]


def _with_new_head(
    config: ModelConfig, tensors: dict[str, Tensor], num_classes: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Replace the head, and the tanh layer before it, by a linear layer of zeros (paper 3.1 and 3.2)."""
    config = config.with_new_head(num_classes)
    kept = {key: value for key, value in tensors.items() if not key.startswith(("head.", "pre_logits."))}
    if num_classes:
        example = next(iter(tensors.values()))  # for the type: a head of the type of the other weights
        kept["head.weight"] = example.new_zeros(num_classes, config.width)
        kept["head.bias"] = example.new_full((num_classes,), config.head_bias_init)
    return config, kept


def _made_for(
    preprocessing: Preprocessing,
    config: ModelConfig,
    tensors: dict[str, Tensor],
    interpolation: Interpolation,
    notes: list[str],
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Fit weights to the image size of a preprocessing: resize the parameters that depend on it (paper 3.2).

    `notes` receives what was resized, and what of the images is cut off.
    """
    resized = with_image_size(config, preprocessing.image_size)
    if resized.cut_off:
        notes.append(f"{resized.cut_off}: they are cut off")
    (kind, old), (_, new) = config.position_extent, resized.position_extent
    if old == new:  # the same patches of images a little larger or smaller
        return resized, tensors
    # Each position module resizes its own parameters, so the new model is built, without memory, to ask it.
    fitted = build_empty(lambda: build_model(resized)).fit_positions(tensors, old, interpolation)
    if not fitted:
        return resized, tensors
    notes.append(
        f"position embeddings resized from {kind} of {format_size(old)} to {format_size(new)}; expect lower "
        "accuracy than at its own size until it is fine-tuned at this one (vitkit finetune)"
    )
    return resized, tensors | fitted
