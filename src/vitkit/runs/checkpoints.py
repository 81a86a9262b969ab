"""Find the checkpoint from which a run continues, or its weights are read, and set damaged files aside."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitkit.durable import hash_file, read_json, remove_leftovers
from vitkit.errors import VitkitError
from vitkit.listener import Listener
from vitkit.models.config.vit_config import Interpolation
from vitkit.models.image_model import ImageModel
from vitkit.runs.config import Run, changed_options, model_config_of
from vitkit.runs.data_record import find_data, read_record
from vitkit.runs.folder import Place, kind_of
from vitkit.runs.records import START_FILE, read_start_record
from vitkit.runs.series_record import require_weights
from vitkit.runs.trained_model import run_card
from vitkit.training.checkpoint import (
    FOLDER,
    UnreadableError,
    clean_up,
    commit_size,
    find_damage,
    list_set_aside,
    load_weights,
    newest_first,
    read_manifest,
    read_progress,
    set_aside,
    step_name,
    survey,
    weights_file,
)
from vitkit.training.trainer import LOG
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import Identity, Loaded, fit_model, identify, load, log_notes
from vitkit.weights.model_card import card_of


def starting_point(folder: Path, run: Run, from_scratch: bool, listener: Listener) -> Path | None:
    """Find the checkpoint to continue from, and remove leftovers of killed processes; None: begin at step 0.

    Args:
        folder: the run folder, locked.
        run: its options.
        from_scratch: begin at step 0 where every checkpoint is damaged.
        listener: hears which files were damaged or removed.

    Raises:
        VitkitError: every checkpoint is damaged; a checkpoint is whole although `from_scratch` is given; one
            cannot be read; or the options have changed since the checkpoint was written.
    """
    checkpoints = survey(folder)
    if checkpoints.lost and not from_scratch:
        reasons = "\n  ".join(f"{path}: {reason}" for path, reason in checkpoints.damaged.items())
        raise VitkitError(
            f"None of the checkpoints of {folder} is whole:\n  {reasons}\nNothing was changed. Put them back "
            "from a copy; or add --from-scratch, which begins again at step 0 and keeps these under other "
            "names; or start a new run with another --out."
        )
    if checkpoints.whole is not None:
        if from_scratch:
            raise VitkitError(
                f"{checkpoints.whole} is whole: leave --from-scratch out to continue from it, or start a new "
                "run with another --out."
            )
        _require_same_options(checkpoints.whole, run, listener)
    for path in checkpoints.uncommitted:
        listener.note(f"{path} was never committed, because its save was cut short: removed.")
    for (path, reason), new_place in zip(
        checkpoints.damaged.items(), clean_up(folder, checkpoints), strict=True
    ):
        _tell_damage(path, reason, new_place, listener)
    if checkpoints.lost and (folder / LOG).exists():
        new_place = set_aside(folder / LOG)
        listener.warn(f"The log of the run so far is kept as {new_place}.")
    for written in (folder, folder / "evaluation"):
        remove_leftovers(written)
    return checkpoints.whole


def keep_damaged(damaged: Mapping[Path, str], listener: Listener) -> None:
    """Set damaged checkpoints aside, unless they were moved already, and warn of each."""
    for path, reason in damaged.items():
        if path.exists():
            _tell_damage(path, reason, set_aside(path), listener)


def tell_set_aside(folder: Path, listener: Listener) -> None:
    """List the files of a run that were set aside as damaged, and the command that removes them."""
    damaged = list_set_aside(folder)
    if damaged:
        listener.warn("\n  ".join(["Damaged and set aside, now or earlier:", *map(str, damaged)]))
        listener.note(f"Remove it with:\n  rm -r {' '.join(shlex.quote(str(path)) for path in damaged)}")


def model_is_whole(folder: Path) -> bool:
    """Whether model.json belongs to model.safetensors: a kill may have come between writing the two."""
    try:
        weights = read_json(folder / "model.json")["weights"]
        return hash_file(folder / "model.safetensors") == (weights["bytes"], weights["sha256"])
    except (OSError, VitkitError, KeyError, TypeError):
        return False  # in doubt, both are written again


def _require_same_options(checkpoint: Path, run: Run, listener: Listener) -> None:
    recorded = read_manifest(checkpoint).configuration
    changes = changed_options(recorded, str(checkpoint / "manifest.json"), run, moved=True)
    if changes:
        raise VitkitError(
            "A run is continued with the options it was begun with, but config.json was edited since "
            f"{checkpoint}:\n  "
            + "\n  ".join(changes)
            + "\nPut back what stands at the left, or start a new "
            "run with another --out."
        )


def _tell_damage(path: Path, reason: str, new_place: Path, listener: Listener) -> None:
    listener.warn(f"{path} is not whole: {reason}. It is kept as {new_place}.")
    listener.note(f"  To remove it: rm -r {shlex.quote(str(new_place))}")


TRIES = 20
"""The number of times that checkpoints are listed again because one was removed while it was read."""


@dataclass(frozen=True)
class Snapshot:
    """Weights of a run that has not finished."""

    file: Path
    step: int
    tensors: dict[str, Tensor]
    is_best: bool
    """Whether it has the best validation so far; else it is the last checkpoint."""

    def __str__(self) -> str:
        which = "the best validation so far" if self.is_best else "the last committed"
        return f"step {self.step:,}, {which}"


def load_any(path: str | Path | Place, options: LoadOptions | None = None) -> Loaded:
    """Load a checkpoint as `vitkit.weights.loading.load` does, or the model of a run that has not finished.

    Args:
        path: as for `vitkit.load_model`.
        options: left out, the checkpoint as it is.

    Raises:
        VitkitError: as `vitkit.load_model`; or the run has no checkpoint yet, or all are damaged.
    """
    place = kind_of(path)
    require_weights(place)
    if place.kind != "unfinished run":
        loaded = load(place.name, options)
        loaded.model.card = find_data(card_of(loaded.model), place.name)
        return replace(loaded, identity=replace(loaded.identity, card=loaded.model.card))
    options, snapshot = options or LoadOptions(), read_snapshot(place)
    identity = _identity_of_unfinished(place, snapshot)
    if options.num_heads not in (None, identity.config.num_heads):
        raise VitkitError(
            f"{place.name} says that it has {identity.config.num_heads} attention heads, not "
            f"{options.num_heads}: leave out num_heads (--num-heads)."
        )
    return fit_model(place.name, identity, snapshot.tensors, options)


def identify_any(path: str | Path | Place, options: LoadOptions | None = None) -> Identity:
    """Identify a checkpoint as `vitkit.weights.identify` does, or an unfinished run.

    Raises:
        VitkitError: as `load_any`.
    """
    place = kind_of(path)
    require_weights(place)
    if place.kind == "unfinished run":
        return _identity_of_unfinished(place, read_snapshot(place))
    identity = identify(place.name, options)
    return replace(identity, card=find_data(identity.card, place.name))


def load_model(
    path: str | Path,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    head: Literal["keep", "new"] | None = None,
    num_heads: int | None = None,
    position_interpolation: Interpolation | None = None,
    image_mean: tuple[float, ...] | None = None,
    image_std: tuple[float, ...] | None = None,
) -> ImageModel:
    """Load a model with the weights of a checkpoint; notes about the checkpoint are logged as warnings.

    Args:
        path: a run folder, of an unfinished run too, whose best committed checkpoint is taken; or a file or
            folder of any format: vitkit's, the original release's, timm's and so on; or an address,
            `hf:org/name`, `https://...`, `gs://...`, which is downloaded once.
        num_classes: the number of logits; left out, the head stays as it is.
        image_size: pixels, one number or `(height, width)`; left out, the size of the weights. Another one
            resizes the position embeddings (paper 3.2).
        head: "keep" the whole head, the tanh layer with it; or "new", the original's rule for fine-tuning:
            the tanh layer is dropped and the head is a new linear layer of zeros. Left out: kept, unless
            `num_classes` is another number than the file's.
        num_heads: heads of the attention, where a file does not record them.
        position_interpolation: the library by whose rule position embeddings are resized, "timm" say: one of
            `vitkit.models.config.vit_config.INTERPOLATIONS`; left out, the one that the weights come from.
        image_mean, image_std: mean and standard deviation of pixels in [0, 1], a value for each channel or
            one for all, in place of the file's.

    Returns:
        The model in evaluation mode, with its card.

    Raises:
        VitkitError: there is no checkpoint, or it is damaged, or of an architecture that vitkit lacks.
    """
    options = LoadOptions(
        num_classes, image_size, head, num_heads, position_interpolation, image_mean, image_std
    )
    loaded = load_any(path, options)
    log_notes(path, loaded.notes, loaded.identity.left_out)
    return loaded.model


def read_snapshot(place: Place, which: Literal["end", "best", "last"] | None = None) -> Snapshot:
    """Read the weights of a committed checkpoint of a run, which may still be training; nothing is changed.

    Args:
        place: the run folder.
        which: the best checkpoint or the last; "end": the best so far; left out, the best where the run ends
            with it. A damaged one is passed over, unless "best" asks for it.

    Raises:
        VitkitError: there is none, or it cannot be read.
    """
    folder, damaged = place.path, dict[Path, str]()
    takes_best = place.run().training.select == "best" if which is None else which != "last"
    for _ in range(TRIES):
        committed = [path for path in newest_first(folder / FOLDER) if commit_size(path)]
        left = [path for path in committed if path not in damaged]
        if not left:
            break
        chosen = left[0]
        try:
            best = read_progress(chosen).best_step
            preferred = folder / FOLDER / step_name(best) if best is not None else chosen
            if takes_best and preferred in left:
                chosen = preferred
            reason = find_damage(chosen)
            if reason is None:
                step = read_progress(chosen).step
                return Snapshot(weights_file(chosen), step, load_weights(chosen), step == best)
        except (UnreadableError, OSError, VitkitError) as error:
            reason = str(error)
        if chosen.exists():  # else it was removed after newer ones were committed: the folder is listed again
            damaged[chosen] = reason
            if which == "best":
                raise VitkitError(
                    f"{chosen} is not whole: {reason}. Give --start-from last to begin from another."
                )
    if not damaged:
        raise VitkitError(
            f"{folder} has no checkpoint yet: nothing of the run is committed. Wait for its first "
            "checkpoint, or continue it with vitkit train --resume."
        )
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
    raise VitkitError(f"None of the checkpoints of {folder} is whole ({reasons}). Nothing was changed.")


def _identity_of_unfinished(place: Place, snapshot: Snapshot) -> Identity:
    """Describe the model of a run that is training, or was stopped; it raises the errors of `identity_of`."""
    note = f"this run has not finished: its weights come from {snapshot}"
    return identity_of(place, snapshot.file, f"{snapshot}, of a run that has not finished", note)


def identity_of(place: Place, file: Path, weights: str, *notes: str) -> Identity:
    """Describe the model of a checkpoint by the run's configuration and the records of its images and start.

    Raises:
        VitkitError: a record of the run is missing or damaged.
    """
    run, record, start = place.run(), read_record(place.path), read_start_record(place.path)
    if record is None:
        raise VitkitError(
            f"{place.path / 'data.json'}, which names the classes of the run, is missing. Put it back, or "
            "continue the run with vitkit train --resume, which writes it again."
        )
    if run.start.start and start is None:
        raise VitkitError(
            f"{place.path / START_FILE}, the record of the run's start, is missing. Put it back."
        )
    config = model_config_of(run, len(record.class_names), start)
    card = run_card(run, record, config, start)
    card = replace(card, origin={**card.origin, "weights": weights})
    return Identity(file, "vitkit", config, card, {}, notes)
