"""Read and write the images, the card and the evaluations of the model that a run trains.

The images that a run was started with are recorded, so that changed images are noticed when it is continued.
The fingerprint of a listing covers names and labels alone; an image that was drawn over keeps both. So sizes
and times of the files are recorded too, which takes one call for each file; with `--check-images content`
also hashes of their bytes, for which all of the data is read.

data.json          counts, class names, how splits were made, files that could not be read
image-files.npy    size and time of every image file (and a hash of its bytes)
"""

import hashlib
import io
import itertools
import os
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit import durable
from vitkit.config import Count, read, write
from vitkit.data.config import DEFAULT_RULE, DecodeRule, Splits
from vitkit.data.decode.image import decode
from vitkit.data.layouts.tables import count_labels
from vitkit.data.listing import Files
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.refusal import RefusalRecord
from vitkit.listener import Listener
from vitkit.models.config import Card
from vitkit.models.zoo import ModelConfig, changed_name
from vitkit.result import Result
from vitkit.runs.config import Run
from vitkit.runs.records import StartRecord
from vitkit.tasks import Answering, find_task, task_of
from vitkit.text import pluralize
from vitkit.weights.model_card import BUILT_IN, Described, ModelCard, TrainingData, card_of, preprocessing_of
from vitkit.weights.published import TRAINING_IMAGES, is_address
from vitkit.world import World

RECORD = "data.json"
STATES = "image-files.npy"
_SHOWN = 5
"""Changed files that an error lists."""
_AT_A_TIME = 1024
"""Files that a thread reads before progress is reported."""
_THREADS = 16
"""Threads that read states: a network disk answers many requests at once."""
States = NDArray[np.int64]
"""(N, 2): size in bytes and time of the last change in nanoseconds; (N, 6) with the four numbers of a SHA-256
of the bytes. One row for each file on the disk, split after split; -1 where a file cannot be read."""


@dataclass(frozen=True)
class DataRecord:
    """The contents of `data.json`."""

    name: str
    spec: str
    kind: str
    class_names: tuple[str, ...]
    counts: Mapping[str, Mapping[str, Count]]
    """Images by split and class."""
    notes: tuple[str, ...]
    rejects: Mapping[str, Mapping[str, str]]
    """Files that could not be read, with the reason, by split."""
    fingerprint: str
    """Hash of names and labels: see `ImageData.fingerprint`."""
    images: Mapping[str, Count]
    """Images by split, fewer than the sum over classes where images have several."""
    image_files: str | None = None
    """SHA-256 of `image-files.npy`; None where names alone are recorded."""


def read_record(folder: Path) -> DataRecord | None:
    """Read the record of a run folder; None if there is none yet.

    Raises:
        VitkitError: it is damaged or cannot be read.
    """
    return read(DataRecord, folder / RECORD)


def find_data(card: ModelCard, path: str | Path) -> ModelCard:
    """Add the path of the images to the card of a run's model: `model.json`, made to be given away, lacks it.

    Args:
        card: of the model.
        path: of the checkpoint: the folder of a run or of a series, or a file in it.
    """
    folder = Path(path) if Path(path).is_dir() else Path(path).parent
    if card.data is None or card.data.has_place or is_address(str(path)):
        return card
    for file in [folder / RECORD, *sorted(folder.glob(f"*/{RECORD}"))]:
        with suppress(VitkitError):  # the model works without the record
            if (record := read_record(file.parent)) and record.fingerprint == card.data.fingerprint:
                return replace(card, data=replace(card.data, spec=record.spec))
    return card


def require_same_images(
    folder: Path, data: ImageData, fingerprint: str, check: str, listener: Listener
) -> DataRecord:
    """Record the images of a run that begins, or make sure that they have not changed.

    Args:
        folder: the run folder, locked.
        data: the images as listed now.
        fingerprint: of the listing, or of all listings of a series.
        check: "time", "content" or "names", as in `Loading.check_images`.
        listener: hears the progress of the check.

    Raises:
        VitkitError: the images have changed, or the record is damaged.
    """
    record, content = read_record(folder), check == "content"
    recorded = record
    if record is None:
        counts, images = {}, {split: len(samples) for split, samples in data.splits.items()}
        for split, samples in data.splits.items():
            numbers = count_labels(samples.labels, len(data.class_names))
            counts[split] = dict(zip(data.class_names, numbers, strict=True))
        facts = data.name, data.spec, data.kind, data.class_names, counts, data.notes
        record = DataRecord(*facts, {}, fingerprint, images)
    if record.fingerprint != fingerprint:
        raise VitkitError(
            f"The images in {data.spec} have changed since {folder} was started (files or labels were "
            "added, removed or changed). Bring them back, or start a new run with another --out."
        )
    before = None if record.image_files is None else _recorded_states(folder, record)
    written = None
    if check == "names":  # the user has confirmed the files as they are now
        if record.image_files is not None:
            has_hashes = before is not None and before.shape[1] == 6
            written = file_states(data, has_hashes, listener)
    elif record.image_files is None:
        written = file_states(data, content, listener)
        if recorded is not None and len(written):
            listener.warn(
                "Sizes and times of the image files were not written down when this run began: they are now."
            )
    else:
        _compare(folder, data, before, file_states(data, content, listener), content)
    if written is not None and len(written):  # data without files has no states
        stream = io.BytesIO()
        np.save(stream, written, allow_pickle=False)
        # Before the record that has their hash, so that a kill in between is noticed.
        durable.replace_file(folder / STATES, [stream.getvalue()])
        record = replace(record, image_files=hashlib.sha256(stream.getvalue()).hexdigest())
    if record.spec != data.spec:  # the images were moved
        record = replace(record, name=data.name, spec=data.spec)
    if record != recorded:
        write(folder / RECORD, record)
    return record


def _compare(folder: Path, data: ImageData, before: States | None, now: States, content: bool) -> None:
    """Compare files with their recorded states; it raises the errors of `require_same_images`."""
    if before is None:
        raise VitkitError(
            f"{folder / STATES}, the record of sizes and times of image files, is missing or damaged. Put it "
            "back, or run the same command again with --check-images names: it takes the files as they "
            "are now."
        )
    if content and before.shape[1] == 2:
        raise VitkitError(
            f"{folder} was started without hashes of the images' bytes, so that --check-images content has "
            "nothing to compare with. Give time (sizes and times must be the same), or names (the files are "
            "taken as they are)."
        )
    if changed := changed_files(data, before, now):
        same_size = len(before) == len(now) and bool((before[:, 0] == now[:, 0]).all())
        what = "times of change" if same_size else "sizes or times of change"
        if min(before.shape[1], now.shape[1]) == 6:
            what = "contents"
        more = "" if len(changed) <= _SHOWN else f"\n  and {len(changed) - _SHOWN:,} more"
        listed = "\n  ".join(map(str, changed[:_SHOWN]))
        raise VitkitError(
            f"{pluralize(len(changed), 'image file')} of {data.spec} changed since {folder} was started; "
            f"other {what}:\n  {listed}{more}\nA run is continued with the images it began with: bring them "
            "back, or start a new run with another --out. If they were only copied, moved or restored, run "
            "the same command again with --check-images names: it takes the files as they are now."
        )


def _recorded_states(folder: Path, record: DataRecord) -> States | None:
    """Read the states that were written down; None if they are missing or damaged."""
    path = folder / STATES
    try:
        if durable.hash_file(path)[1] != record.image_files:
            return None
        # Mapped: an array that claims to be larger than its file takes no memory, and is refused.
        states = np.lib.format.open_memmap(path, mode="r")
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise VitkitError(f"{path} cannot be read: {error.strerror or error}.") from error
    is_whole = states.dtype == np.int64 and states.ndim == 2 and states.shape[1] in (2, 6)
    return states if is_whole else None


class RejectedFiles:
    """Files that could not be read, with the reason, by split.

    A resumed run begins with the files that were rejected before it was stopped: the quota of unreadable
    files is for all steps together.
    """

    def __init__(self, folder: Path, record: DataRecord) -> None:
        """Begin with the rejected files in the record of the run folder `folder`."""
        self._folder, self._record = folder, record
        self.of_split: dict[str, dict[str, str]] = defaultdict(dict)
        """Files that cannot be read: their reasons by key and split, to which readers of images add."""
        self.of_split.update({split: dict(files) for split, files in record.rejects.items()})
        self._shared = sum(map(len, self.of_split.values()))

    def write(self) -> None:
        """Write the record again if files were added, so that a kill loses nothing."""
        bad = {split: dict(files) for split, files in self.of_split.items() if files}
        if self._record.rejects != bad:
            self._record = replace(self._record, rejects=bad)
            write(self._folder / RECORD, self._record)

    def share(self, world: World) -> None:
        """Add the files that other processes could not read, so that the quota holds for all processes."""
        count = sum(map(len, self.of_split.values()))
        if world.size > 1 and world.total(count - self._shared)[0]:
            for others in world.gather(dict(self.of_split)):
                for split, files in others.items():
                    self.of_split[split].update(files)
            self._shared = sum(map(len, self.of_split.values()))

    def tell(self, listener: Listener) -> None:
        """Warn of the number of rejected files; the report names them."""
        for split, files in self.of_split.items():
            if files:
                listener.warn(
                    f"{pluralize(len(files), 'image')} of {split} could not be read: see the report."
                )


def file_states(data: ImageData, content: bool, listener: Listener) -> States:
    """Read the states of all image files of a data set; data without files has none.

    Args:
        data: a listed data set, none of it in memory.
        content: whether to read every byte, which takes as long as reading the data set.
        listener: hears the progress.
    """
    columns, portions = 6 if content else 2, list[tuple[Files, NDArray[np.int64]]]()
    for samples in data.splits.values():
        numbers = samples.files.on_disk(samples.numbers)
        starts = range(0, len(numbers), _AT_A_TIME)
        portions += [(samples.files, numbers[start : start + _AT_A_TIME]) for start in starts]
    total = sum(len(numbers) for _, numbers in portions)
    states = [np.zeros((0, columns), dtype=np.int64)]
    with ThreadPoolExecutor(_THREADS) as pool, listener.progress("checking image files") as progress:
        for rows in pool.map(lambda part: [_stat(part[0].path(n), content) for n in part[1]], portions):
            states.append(np.array(rows, dtype=np.int64))
            progress(sum(map(len, states)), total)
    return np.concatenate(states)


def changed_files(data: ImageData, before: States, now: States) -> list[Path]:
    """List the files whose state has changed; where both states have hashes, times do not matter."""
    splits = data.splits.values()
    paths = [(each.files, number) for each in splits for number in each.files.on_disk(each.numbers).tolist()]
    if len(before) != len(now):
        return [files.path(number) for files, number in paths]
    columns = [0, *range(2, 6)] if min(before.shape[1], now.shape[1]) == 6 else [0, 1]
    differs = (before[:, columns] != now[:, columns]).any(axis=1)
    return [paths[index][0].path(paths[index][1]) for index in np.flatnonzero(differs).tolist()]


def _stat(path: Path, content: bool) -> list[int]:
    try:
        status = path.stat()
        state = [status.st_size, status.st_mtime_ns]
        if content:
            digest = bytes.fromhex(durable.hash_file(path)[1])
            state += np.frombuffer(digest, dtype="<i8").tolist()
    except (OSError, VitkitError):
        return [-1] * (6 if content else 2)
    return state


OTHER_IMAGES = "images.json"
"""The file that says, in a folder below evaluation/, which images the numbers beside it are of."""


@dataclass(frozen=True)
class OtherImages:
    """The contents of `images.json`."""

    place: str
    """A hash of their path: `evaluation/` is given away with a model and does not say where images are."""
    fingerprint: str


REFUSAL = "evaluation/refusal.json"
"""The file in a run folder with the number of refused images of each class, and their names."""


def write_refusal(run: Path, record: RefusalRecord, listener: Listener) -> None:
    """Write the record of refused images into the run folder, and show what it says.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    durable.refuse_links(run)
    (run / REFUSAL).parent.mkdir(exist_ok=True)
    write(run / REFUSAL, record)
    listener.show([("refuses", [*filter(None, (record.sentence(), record.unseen_sentence()))])])


def read_refusal(run: Path) -> RefusalRecord | None:
    """Read the record of refused images; None where the model refuses nothing.

    Raises:
        VitkitError: it is damaged.
    """
    return read(RefusalRecord, run / REFUSAL)


EXAMPLES = "evaluation/examples.png"
"""The picture of the predictions of a model without answers, in its run folder."""


def write_evaluation(run: Path, split: str, result: Result, predictions: Any) -> None:
    """Write an evaluation into the run folder: the numbers as JSON, the predictions as arrays.

    Args:
        run: the folder.
        split: of the run's images; of others, what `name_other_images` returns, "/" and the split.
        result, predictions: the numbers, and what they are counted from.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    durable.refuse_links(run)
    folder = run / "evaluation"
    folder.mkdir(exist_ok=True)
    numbers = folder / f"{split}.json"
    # The numbers are there only beside the arrays that they are counted from: after a kill between two files
    # the split counts as not evaluated.
    numbers.unlink(missing_ok=True)
    durable.sync_folder(numbers.parent)
    predictions.save(numbers)
    write(numbers, result.to_json())


def name_other_images(run: Path, data: ImageData) -> str:
    """Make the folder below evaluation/ for numbers on images that are not the run's own; return its name.

    The same path gets the same folder again, and another path of the same name gets the next number.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    durable.refuse_links(run)
    place = hashlib.sha256(os.fsencode(absolute_spec(data.spec))).hexdigest()
    for number in itertools.count(1):
        name = (data.name or "images") + (f"-{number}" if number > 1 else "")
        folder, record = run / "evaluation" / name, None
        with suppress(VitkitError):  # a damaged record is another's
            record = read(OtherImages, folder / OTHER_IMAGES)
        if record is None and not folder.exists():
            folder.mkdir(parents=True)
        elif record is None or record.place != place:
            continue
        durable.refuse_link(folder)
        durable.remove_leftovers(folder)
        write(folder / OTHER_IMAGES, OtherImages(place, data.fingerprint()))
        return name
    raise AssertionError("The numbers have no end.")


def read_evaluations(run: Path, answering: Answering) -> dict[str, tuple[Any, Any]]:
    """Read the evaluations in a run folder by split: the task's numbers and predictions.

    Raises:
        VitkitError: one is damaged.
    """
    evaluations = {}
    for split in ("test", "val", "train"):
        with suppress(FileNotFoundError):  # not evaluated on this split
            evaluations[split] = answering.read_evaluation(run / "evaluation" / f"{split}.json")
    return evaluations


def write_examples(run: Path, picture: NDArray[np.uint8]) -> Path:
    """Write a picture `(H, W, 3)` of a model's predictions into the run folder.

    Raises:
        VitkitError: a link leads out of the run folder.
    """
    durable.refuse_links(run)
    path = run / EXAMPLES
    path.parent.mkdir(exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format="PNG")
    durable.replace_file(path, [content.getvalue()])
    return path


def read_examples(run: Path) -> NDArray[np.uint8] | None:
    """Read the picture of a model's predictions; None where it is missing or damaged."""
    path = run / EXAMPLES
    with suppress(DecodeError):
        return decode(path, DEFAULT_RULE) if path.is_file() else None
    return None


def open_model_data(model: Described, spec: str | None = None, rule: DecodeRule | None = None) -> ImageData:
    """Open the data that a model was trained on, with the splits of its training; or other data under its
    class names.

    Args:
        model: with its card.
        spec: other data; None for the model's own.
        rule: how files are read; left out, as the model's preprocessing says.

    Raises:
        VitkitError: the model has no record of its data or its path, or the data has changed or is gone.
    """
    rule, learning = rule or preprocessing_of(model).decode, task_of(model.card).learning
    names = model.card.class_names or None
    record = card_of(model).data
    if spec is not None and not is_training_data(model.card, spec):
        # All of it is evaluated, unless it has splits of its own: the model was not trained on it. Of the
        # splits of training, only the separator of labels and the levels hold for other data.
        separator = None if record is None else record.splits.label_separator
        levels = model.card.levels is not None
        uncut = Splits(val_fraction=0, test_fraction=0, label_separator=separator, levels=levels)
        return learning.open_data(spec, uncut, rule, names)
    if record is None:
        raise VitkitError("The model does not say which data it was trained on: give it with --data.")
    if spec is None and not record.has_place:
        raise VitkitError(
            f"The model does not say where its data is (its name is {record.name!r}): give it with --data."
        )
    place = record.spec if spec is None else spec
    data = learning.open_data(place, record.splits, rule, names)
    if record.fingerprint != data.fingerprint():
        raise VitkitError(
            f"The images in {place} have changed since the model was trained: files or labels were added, "
            "removed or changed, so that it is unclear which are test images. Bring them back, or give other "
            "images with --data."
        )
    return data


def is_training_data(card: Card, spec: str) -> bool:
    """Whether a data argument names the images that a model was trained on.

    A model that was given away lacks their path, and they may have been moved: then the images are listed and
    compared.
    """
    record = card.data if isinstance(card, ModelCard) else None
    if record is None:
        return False
    if absolute_spec(spec) == record.spec:
        return True
    if record.spec == BUILT_IN or (record.has_place and os.access(record.spec, os.F_OK)):
        return False
    try:
        data = task_of(card).learning.open_data(spec, record.splits, DEFAULT_RULE, card.class_names or None)
    except VitkitError:  # no such classes, say
        return False
    return data.fingerprint() == record.fingerprint


def run_card(run: Run, data: DataRecord, config: ModelConfig, start: StartRecord | None) -> ModelCard:
    """Make the card of the model that a run trains; its origin is completed when the run ends.

    Args:
        run, data, config, start: the run, the records of its images and its start, and its architecture.
    """
    origin: dict[str, Any] = {"recipe": run.recipe}
    if start is not None:
        origin["start"] = dict(start.origin)
    elif "train" in data.images:  # else the weights were pre-trained on the images of the start
        origin[TRAINING_IMAGES] = data.images["train"]
    name = run.model if start is None else start.model  # a run with a start is timed without its record
    if not run.start.start:  # an option may have changed the architecture; with a start, none may
        name = changed_name(run.model, config)
    return ModelCard(
        name=name,
        class_names=data.class_names,
        task=find_task(run.task).learning.learned(run.objective),
        preprocessing=run.preprocessing,
        augmentation=run.augmentation,
        data=TrainingData(run.data, data.name, run.splits, data.fingerprint),
        origin=origin,
        position_interpolation="original" if start is None else start.position_interpolation,
    )
