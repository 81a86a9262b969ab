"""Begin a run from the weights of another model, its start, or continue it from a checkpoint of its own.

start.json   the hashes of the start's files, the architecture of the run's model, the origin of the weights

A run reads its start until it has a checkpoint of its own; from then on `start.json` is enough.
"""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitkit.config import difference, read, to_json, write
from vitkit.data.config import Preprocessing
from vitkit.data.paths import absolute_spec
from vitkit.durable import hash_file, read_json, remove_leftovers
from vitkit.errors import VitkitError
from vitkit.listener import Listener
from vitkit.models import image_model, zoo
from vitkit.models.config import INTERPOLATIONS, Interpolation
from vitkit.runs import build, records, series_record, trained_model
from vitkit.runs.config import Run, StartConfig, changed_options, full_name, model_config_of
from vitkit.runs.folder import Place, kind_of
from vitkit.tasks import find_task
from vitkit.text import format_size, pluralize
from vitkit.training import checkpoint, trainer
from vitkit.weights import loading, model_card, published
from vitkit.weights.format_names import LoadOptions

NAMES_SHOWN = 5
"""Names of classes that an error lists: an error stays a few lines long."""
FREE = ("dropout", "attention_dropout", "drop_path")
"""Fields of the architecture that are no property of the weights: a run may choose other values."""


@dataclass(frozen=True, kw_only=True)
class Start(loading.Identity):
    """Weights to begin from, described before they are read."""

    given: str
    """The path or the address that the user gave."""
    which: str
    """The checkpoint of a run that was chosen: "its best checkpoint, step 120"; "" for any other start."""
    model: str
    """The name of its model, or of the family where the model has no name of its own."""
    preprocessing: Preprocessing
    """The recorded preprocessing, else the model's authors' own."""
    files: tuple[Path, ...]
    """The files of its weights, an index of shards first."""
    sha256: str | None
    """The recorded hash of its only file; None where there are several files, or no record of the hash."""
    read: Callable[[], dict[str, Tensor]]
    """Reads the weights, by the names of their tensors."""

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return f"{self.given} ({self.which})" if self.which else self.given


def absolute_start(start: str) -> str:
    """Make the path of a start absolute, so that it holds from any folder; an address stays as it is.

    So does the name of a published checkpoint, whose address a run does not record: names never change, and
    a file of that name that somebody put in place still serves a run that is continued.
    """
    return start if published.is_address(start) else absolute_spec(start)


def find_start(options: StartConfig, place: Place | None = None) -> Start:
    """Describe a start; its weights are not read.

    Args:
        options: its path or address, and the choice among the checkpoints of a run.
        place: the kind of that path; left out, it is looked up.

    Raises:
        VitkitError: there is nothing at the path, no format of checkpoints is recognised, or it is a run
            without any checkpoint.
    """
    place = place or kind_of(options.start)
    series_record.require_weights(place)
    if options.start_from != "end" and place.config is None:
        raise VitkitError(
            f"--start-from {options.start_from} chooses among the checkpoints of a run, and {options.start} "
            "is no run folder: leave it out."
        )
    if place.config is None or (options.start_from == "end" and place.kind != "unfinished run"):
        opened = loading.OpenCheckpoint(options.start, LoadOptions(num_heads=options.num_heads))
        which, identity, files, read = "", opened.identity, opened.files, opened.read
        sha256 = None if identity.checksum is None else identity.checksum.sha256
    else:
        if place.kind == "run" and checkpoint.read_ended(place.path) is not None:
            raise VitkitError(
                f"{place.name} is a run of a series and has finished, so its checkpoints were removed and "
                "none is left to begin from. Leave --start-from out: its model is taken."
            )
        snapshot = read_snapshot(place, options.start_from, reads=False)
        is_best = snapshot.is_best and options.start_from != "last"
        kind, file = "its best checkpoint" if is_best else "its last checkpoint", snapshot.file
        which = f"{kind}, step {snapshot.step:,}"
        identity = identity_of(place, file, f"{kind} of step {snapshot.step}")
        files, sha256 = (file,), checkpoint.read_manifest(file.parent).files[file.name].sha256
        read = partial(checkpoint.load_weights, file.parent)
    return Start(
        **{**vars(identity), "card": trained_model.find_data(identity.card, options.start)},
        given=options.start,
        which=which,
        model=identity.card.name or identity.config.family,
        preprocessing=model_card.fit_preprocessing(identity.card.preprocessing, identity.config),
        files=files,
        sha256=sha256,
        read=read,
    )


def hash_weights(start: Start) -> dict[str, str]:
    """Compute the SHA-256 of each file of a start's weights, by the name of the file."""
    if start.sha256 is not None:
        return {start.files[0].name: start.sha256}
    return {file.name: hash_file(file)[1] for file in start.files}


def plan_start(run: Run, class_names: Sequence[str], start: Start) -> records.StartRecord:
    """Plan the model of a run that begins from a start, which the record of the start has.

    Args:
        run: its options.
        class_names: of its images.
        start: by `find_start`.

    Raises:
        VitkitError: the run's options contradict the start.
    """
    if run.model not in ("", start.model) and full_name(run, len(class_names)) != start.model:
        raise VitkitError(
            f"{start.name} is a {start.model}, so a run that begins from it trains the same model, found "
            f"model {run.model}. Leave --model out."
        )
    # `before` is the start's architecture with this run's channels and pixel statistics, `config` the one
    # that this run trains.
    before = zoo.with_channels(start.config, run.preprocessing.decode.channels)
    before = zoo.with_statistics(before, run.start.image_mean, run.start.image_std)
    config = zoo.with_image_size(before, run.preprocessing.image_size)
    if run.start.head == "keep":
        _class_order(start, class_names)  # for its error, before anything is built
        reordered = list(start.card.class_names) != list(class_names)
        head = "head: kept, its classes in the order of the images'" if reordered else "head: kept"
    else:
        config = config.with_new_head(len(class_names))
        former = f" of {before.num_classes:,} classes" if before.num_classes else ""
        former += " with its tanh layer" if getattr(before, "representation_size", None) else ""
        former = f", in place of the head{former}" if former else ""
        first = "in closed form" if run.start.head == "ridge" else "new, zeros"
        head = f"head: {first}, {pluralize(len(class_names), 'class', 'classes')}{former}"
    changes = {key: value for key, value in to_json(run.architecture).items() if value is not None}
    own = to_json(config)
    for key, value in changes.items():
        if key not in own:
            raise VitkitError(f"{start.model} has no {key}: leave it out.")
        if key not in FREE and own[key] != value:
            raise VitkitError(
                f"The start decides the architecture: its {key} is {own[key]}, and its weights are worth "
                f"nothing with {value}. Leave --{key.replace('_', '-')} out."
            )
    config = replace(config, **changes)
    if unfit := find_task(run.task).learning.explain_unfit(config, run.objective):
        raise VitkitError(f"{start.name} {unfit}.")
    rule = run.start.position_interpolation or start.card.position_interpolation
    history = {key: value for key, value in start.card.history().items() if value not in ("", None)}
    origin = {"from": run.start.start, "model": start.model, "format": start.format, **history}
    # The start, what is new in the run's model, and the warnings about the start.
    lines = [
        f"{start.name}: {start.model} at {format_size(before.image_size)}, "
        f"{f'{before.num_classes:,} classes' if before.num_classes else 'no head'} ({start.format} format)",
        head,
    ]
    if licence := published.describe_origin_licence(run.start.start, start.card):
        lines.append(f"licence: {licence}")
    (kind, old), (_, new) = before.position_extent, config.position_extent
    if old != new:
        sizes = f"{format_size(old)} to {format_size(new)}"
        lines.append(f"positions: resized from {kind} of {sizes} by {INTERPOLATIONS[rule]}")
    changed = difference(to_json(start.preprocessing), to_json(run.preprocessing))
    # The line on positions names another image size.
    changed = [line for line in changed if not line.startswith("image_size")]
    own_way = f"other than the start's in {'; '.join(changed)}" if changed else "the start's"
    lines.append(f"preprocessing: {own_way}")
    if before.in_channels != start.config.in_channels:
        lines.append(zoo.describe_channels(start.config.in_channels, before.in_channels))
    if before != zoo.with_channels(start.config, before.in_channels):
        lines.append(f"pixels: mean {before.image_mean}, std {before.image_std} instead of the start's")
    lines += [f"! {note}" for note in start.notes]  # "!" marks warnings, as in `first_screen`
    # Without the hashes of the files: `load_start` adds them when it reads the weights.
    return records.StartRecord(
        run.start.start, start.model, config.family, to_json(config), tuple(lines), origin, {}, rule
    )


def load_start(parts: build.Parts, record: records.StartRecord, start: Start) -> records.StartRecord:
    """Load the weights of a start into a run's model, and write `start.json`.

    Args:
        parts: of the run, all of whose model's weights are replaced.
        record: by `plan_start`, or as it was written when the run began.
        start: by `find_start`.

    Returns:
        The record as it is written, with the hashes of the files.

    Raises:
        VitkitError: the start is damaged, or its weights have changed since the run began.
    """
    run, folder, model = parts.run, parts.folder, parts.model
    files = hash_weights(start)
    if record.files not in ({}, files):  # it was written before
        raise VitkitError(
            f"The weights of {start.name} have changed since {folder} was started from it, and the run has "
            "no checkpoint yet. Put the former ones back, or start a new run with another --out."
        )
    hashes: Any = files if len(files) > 1 else next(iter(files.values()))
    written = replace(record, files=files, origin={**record.origin, "sha256": hashes})
    options = LoadOptions(
        num_classes=model.config.num_classes,
        image_size=model.config.image_size,
        head="keep" if run.start.head == "keep" else "new",
        position_interpolation=run.start.position_interpolation,
        image_mean=run.start.image_mean,
        image_std=run.start.image_std,
        channels=model.config.in_channels,
    )
    tensors = loading.fit_weights(start.name, start.config, start.card, start.read(), options, model).tensors
    if run.start.head == "keep":
        order = _class_order(start, parts.data.class_names)
        tensors |= {name: tensors[name][order] for name in ("head.weight", "head.bias")}
    model.load_state_dict(tensors)
    card = model_card.card_of(model)
    model.card = replace(card, origin={**card.origin, "start": dict(written.origin)})
    write(folder / records.START_FILE, written)
    return written


def _class_order(start: Start, class_names: Sequence[str]) -> list[int]:
    """Match the classes of the images by name with the rows of the start's head; returns a row for each.

    Raises:
        VitkitError: the classes are not the same.
    """
    if not (names := start.card.class_names):
        raise VitkitError(
            f"{start.name} does not say the names of its {start.config.num_classes:,} classes, so they "
            "cannot be matched with the classes of the images. Leave --head keep out: the head is then new."
        )
    row_of = {name: row for row, name in enumerate(names)}
    in_images = set(class_names)
    sides = {
        "only the images have": [name for name in class_names if name not in row_of],
        "only the start has": [name for name in names if name not in in_images],
    }
    if any(sides.values()):
        parts = [
            f"{side} {', '.join(classes[:NAMES_SHOWN])}{', ...' * (len(classes) > NAMES_SHOWN)}"
            for side, classes in sides.items()
            if classes
        ]
        raise VitkitError(
            f"--head keep needs the same classes in the images as in {start.name}, but "
            f"{'; '.join(parts)}. Leave it out: the head is then new."
        )
    return [row_of[name] for name in class_names]


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
    checkpoints = checkpoint.survey(folder)
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
        recorded, where = checkpoint.read_manifest(checkpoints.whole), checkpoints.whole / "manifest.json"
        if changes := changed_options(recorded.configuration, str(where), run, moved=True):
            listed = "\n  ".join(changes)
            raise VitkitError(
                "A run is continued with the options it was begun with, but config.json was edited since "
                f"{checkpoints.whole}:\n  {listed}\nPut back what stands at the left, or start a new run "
                "with another --out."
            )
    for path in checkpoints.uncommitted:
        listener.note(f"{path} was never committed, because its save was cut short: removed.")
    for (path, reason), new_place in zip(
        checkpoints.damaged.items(), checkpoint.clean_up(folder, checkpoints), strict=True
    ):
        tell_damage(path, reason, new_place, listener)
    if checkpoints.lost and (folder / trainer.LOG).exists():
        new_place = checkpoint.set_aside(folder / trainer.LOG)
        listener.warn(f"The log of the run so far is kept as {new_place}.")
    for written in (folder, folder / "evaluation"):
        remove_leftovers(written)
    return checkpoints.whole


def tell_set_aside(folder: Path, listener: Listener) -> None:
    """List the files of a run that were set aside as damaged, and the command that removes them."""
    if damaged := checkpoint.list_set_aside(folder):
        listener.warn("\n  ".join(["Damaged and set aside, now or earlier:", *map(str, damaged)]))
        listener.note(f"Remove it with:\n  rm -r {' '.join(shlex.quote(str(path)) for path in damaged)}")


def model_is_whole(folder: Path) -> bool:
    """Whether model.json belongs to model.safetensors: a kill may have come between writing the two."""
    try:
        weights = read_json(folder / "model.json")["weights"]
        return hash_file(folder / "model.safetensors") == (weights["bytes"], weights["sha256"])
    except (OSError, VitkitError, KeyError, TypeError):
        return False  # in doubt, both are written again


def tell_damage(path: Path, reason: str, new_place: Path, listener: Listener) -> None:
    """Warn of a damaged checkpoint that was set aside."""
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
    """Empty where they were not to be read."""
    is_best: bool
    """Whether it has the best validation so far; else it is the last checkpoint."""

    def __str__(self) -> str:
        which = "the best validation so far" if self.is_best else "the last committed"
        return f"step {self.step:,}, {which}"


def load_any(path: str | Path | Place, options: LoadOptions | None = None) -> loading.Loaded:
    """Load a checkpoint as `vitkit.weights.loading.load` does, or the model of a run that has not finished.

    Args:
        path: as for `vitkit.load_model`.
        options: left out, the checkpoint as it is.

    Raises:
        VitkitError: as `vitkit.load_model`; or the run has no checkpoint yet, or all are damaged.
    """
    place, options = kind_of(path), options or LoadOptions()
    return loading.fit_model(place.name, *_open_any(place, options), options)


def identify_any(path: str | Path | Place, options: LoadOptions | None = None) -> loading.Identity:
    """Identify a checkpoint as `vitkit.weights.identify` does, or an unfinished run.

    Raises:
        VitkitError: as `load_any`.
    """
    return _open_any(kind_of(path), options or LoadOptions(), reads=False)[0]


def _open_any(
    place: Place, options: LoadOptions, reads: bool = True
) -> tuple[loading.Identity, dict[str, Tensor]]:
    """Describe a checkpoint, or the model of a run that is training or was stopped, and read its weights,
    unless they are not to be read."""
    series_record.require_weights(place)
    if place.kind != "unfinished run":
        with loading.OpenCheckpoint(place.name, options) as opened:
            card = trained_model.find_data(opened.identity.card, place.name)
            return replace(opened.identity, card=card), opened.read() if reads else {}
    snapshot = read_snapshot(place, reads=reads)
    note = f"this run has not finished: its weights come from {snapshot}"
    identity = identity_of(place, snapshot.file, f"{snapshot}, of a run that has not finished", note)
    if options.num_heads not in (None, identity.config.num_heads):
        raise VitkitError(
            f"{place.name} says that it has {identity.config.num_heads} attention heads, not "
            f"{options.num_heads}: leave out num_heads (--num-heads)."
        )
    return identity, snapshot.tensors


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
) -> image_model.ImageModel:
    """Load a model with the weights of a checkpoint; notes about the checkpoint are logged as warnings.

    Args:
        path: a run folder, of an unfinished run too, whose best committed checkpoint is taken; or a file or
            folder of any format: vitkit's, the original release's, timm's and so on; or an address,
            `hf:org/name`, `https://...`, which is downloaded once.
        num_classes: the number of logits; left out, the head stays as it is.
        image_size: pixels, one number or `(height, width)`; left out, the size of the weights. Another one
            resizes the position embeddings (paper 3.2).
        head: "keep" the whole head, the tanh layer with it; or "new", the original's rule for fine-tuning:
            the tanh layer is dropped and the head is a new linear layer of zeros. Left out: kept, unless
            `num_classes` is another number than the file's.
        num_heads: heads of the attention, where a file does not record them.
        position_interpolation: the library by whose rule position embeddings are resized, "timm" say: one of
            `vitkit.models.config.INTERPOLATIONS`; left out, the one that the weights come from.
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
    model_card.log_notes(path, loaded.notes, loaded.identity.left_out)
    return loaded.model


def read_snapshot(
    place: Place, which: Literal["end", "best", "last"] | None = None, reads: bool = True
) -> Snapshot:
    """Read the weights of a committed checkpoint of a run, which may still be training; nothing is changed.

    Args:
        place: the run folder.
        which: the best checkpoint or the last; "end": the best so far; left out, the best where the run ends
            with it. A damaged one is passed over, unless "best" asks for it.
        reads: whether the weights are read, and not only the checkpoint chosen.

    Raises:
        VitkitError: there is none, or it cannot be read.
    """
    folder, damaged = place.path, dict[Path, str]()
    takes_best = place.run().training.select == "best" if which is None else which != "last"
    for _ in range(TRIES):
        listed = checkpoint.newest_first(folder / checkpoint.FOLDER)
        left = [path for path in listed if path not in damaged and checkpoint.commit_size(path)]
        if not left:
            break
        chosen, is_lost = left[0], False
        try:
            best = checkpoint.read_progress(chosen).best_step
            preferred = chosen if best is None else folder / checkpoint.FOLDER / checkpoint.step_name(best)
            is_lost = which == "best" and best is not None and preferred not in left
            if takes_best and (preferred in left or is_lost):
                chosen = preferred
            reason = "it was removed, or set aside as damaged" if is_lost else checkpoint.find_damage(chosen)
            if reason is None:
                step = checkpoint.read_progress(chosen).step
                tensors = checkpoint.load_weights(chosen) if reads else {}
                return Snapshot(checkpoint.weights_file(chosen), step, tensors, step == best)
        except (checkpoint.UnreadableError, OSError, VitkitError) as error:
            reason = str(error)
        # One that is gone was removed after newer ones were committed: the folder is listed again.
        if is_lost or chosen.exists():
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


def identity_of(place: Place, file: Path, weights: str, *notes: str) -> loading.Identity:
    """Describe the model of a checkpoint by the run's configuration and the records of its images and start.

    Raises:
        VitkitError: a record of the run is missing or damaged.
    """
    run, record = place.run(), trained_model.read_record(place.path)
    start = read(records.StartRecord, place.path / records.START_FILE)
    if record is None:
        raise VitkitError(
            f"{place.path / 'data.json'}, which names the classes of the run, is missing. Put it back, or "
            "continue the run with vitkit train --resume, which writes it again."
        )
    if run.start.start and start is None:
        raise VitkitError(
            f"{place.path / records.START_FILE}, the record of the run's start, is missing. Put it back."
        )
    config = model_config_of(run, len(record.class_names)) if start is None else start.config
    card = trained_model.run_card(run, record, config, start)
    card = replace(card, origin={**card.origin, "weights": weights})
    return loading.Identity(file, "vitkit", config, card, {}, notes)
