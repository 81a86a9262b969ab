"""Compute a table with a row for each image in parts, here or by the processes of a Ray cluster.

A part is a Parquet file that is there whole or not at all, and its rows follow from its number alone. So the
files are the only state: a command that was killed goes on with the missing parts, a part that a cluster
computes twice is the same twice, and every image has one row. Ray's own checkpoint of a job would be a second
state beside the files, and is not used.
"""

import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq

from vitkit._version import __version__
from vitkit.config import read_if_there, to_json
from vitkit.data.listing import PARTS_RECORD
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.options import ClusterOptions, JobOptions
from vitkit.listener import SILENT, Progress
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import lock_folder

PART_ROWS = 4096
"""Approximate rows of a part: a few megabytes of features, and a minute of work for a ViT-B/16 on two
cores."""

DIGESTS = {"model": "another model", "images": "other images"}
"""The facts of a table that are digests, and the phrase for another one."""

ComputeRows = Callable[[int, int, Callable[[int], None]], pa.Table]
"""A function `(first, last, progress)` that computes the rows `[first, last)`, and calls `progress` with the
number of rows that are done."""


@dataclass(frozen=True)
class PartsRecord:
    """The facts that decide the rows of a table."""

    facts: Mapping[str, Any]
    """The model, the images and the options, as plain data."""
    rows: int
    part_rows: int
    vitkit: str = __version__

    def parts(self, folder: Path) -> list[Path]:
        """Name the files of all parts."""
        return [folder / f"part-{number:05d}.parquet" for number in range(-(-self.rows // self.part_rows))]

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first row of a part, and the row after its last one."""
        first = number * self.part_rows
        return first, min(first + self.part_rows, self.rows)


class RowSource(Protocol):
    """The options of a table: a dataclass of plain data, which a cluster sends to its processes."""

    @property
    def options(self) -> JobOptions:
        """Return the options of the job."""

    def open(self) -> tuple[PartsRecord, ComputeRows]:
        """Load the model and list the images, once in each process that computes."""


def part_rows(batch_size: int) -> int:
    """Choose the rows of a part: whole batches, so that only the last batch of all is smaller."""
    return batch_size * max(1, PART_ROWS // batch_size)


@contextmanager
def computed_parts(
    folder: Path, source: RowSource, cluster: ClusterOptions
) -> Iterator[tuple[list[Path], int]]:
    """Compute the parts that are missing in a folder, which is locked until the block ends.

    Args:
        folder: the folder of the parts; made if it is missing.
        source: computes the rows.
        cluster: the processes that compute.

    Yields:
        The files of all parts, and the number of parts that were there before.

    Raises:
        VitkitError: the folder holds something else; another process is at work in it; the rows cannot be
            computed; or there is no Ray.
    """
    require_folder(folder)
    if cluster.on == "ray":
        _import_ray()
    listener = source.options.listener
    record, compute = source.open()
    with lock_folder(folder):
        record = _take_folder(folder, record)
        paths = record.parts(folder)
        missing = [number for number, path in enumerate(paths) if not _is_whole(path, record.bounds(number))]
        done = record.rows - sum(last - first for first, last in map(record.bounds, missing))
        with listener.progress("computing", record.rows) as progress:
            if done:
                progress(done)
            if cluster.on == "ray" and missing:
                for number in _on_ray(folder, source, missing, cluster.processes):
                    first, last = record.bounds(number)
                    done += last - first
                    progress(done)
            else:
                for number in missing:
                    first, last = record.bounds(number)
                    _write(paths[number], compute(first, last, partial(_tell, progress, done)))
                    done += last - first
                    progress(done)
        yield paths, len(paths) - len(missing)


def remove_parts(folder: Path) -> None:
    """Remove a folder of parts that this process has locked."""
    for path in sorted(folder.iterdir(), reverse=True):  # the lock goes last
        path.unlink()
    with suppress(OSError):  # another command may have begun there, since the lock is gone
        folder.rmdir()


def _take_folder(folder: Path, record: PartsRecord) -> PartsRecord:
    """Begin a folder of parts, or check that it holds parts of the same table.

    Returns:
        The record in the folder, whose parts may be of another size.

    Raises:
        VitkitError: it holds other files, or parts of another table.
    """
    before = read_if_there(PartsRecord, folder / PARTS_RECORD)
    if before is None:
        others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
        if others:
            raise VitkitError(f"{folder} holds other files ({others[0]}): choose another --out.")
        replace_json(folder / PARTS_RECORD, to_json(record))
        return record
    changes = [
        DIGESTS.get(name, f"{name} {before.facts.get(name)!r}")
        for name, value in record.facts.items()
        if before.facts.get(name) != value
    ]
    if changes:
        raise VitkitError(
            f"{folder} holds the results of {' and of '.join(changes)}. Choose another --out, or give the "
            "same model, images and options to continue."
        )
    return before


def _is_whole(path: Path, bounds: tuple[int, int]) -> bool:
    """Whether a part is on the disk; a damaged one is computed again."""
    try:
        return bool(pq.read_metadata(path).num_rows == bounds[1] - bounds[0])
    except (OSError, pa.ArrowInvalid):
        return False


def _tell(progress: Progress, before: int, done: int) -> None:
    """Add the rows of the current part to the rows of the parts before, and show the sum."""
    progress(before + done)


def _write(path: Path, table: pa.Table) -> None:
    """Write a part, which is there whole or not at all."""
    stream = io.BytesIO()
    # Features hardly become smaller: compression would cost more time than it is worth.
    pq.write_table(table, stream, compression="none")
    replace_file(path, [stream.getvalue()])


class _Worker:
    """A process of a cluster that computes parts: an actor of Ray."""

    def __init__(self, folder: str, source: RowSource, working: str) -> None:
        # Paths of images and models may be relative to the folder of the command, and a cluster works in
        # another folder. Where this machine has no such folder, absolute paths work all the same.
        with suppress(OSError):
            os.chdir(working)
        self._folder = Path(folder)
        if not (self._folder / PARTS_RECORD).is_file():
            raise VitkitError(
                f"{self._folder} cannot be seen by all machines: put --out on a disk that all share."
            )
        record, self._compute = source.open()
        self._record = _take_folder(self._folder, record)  # refuses other images and weights on this machine

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute and write the part of a number, and return the number."""
        number = int(row["part"])
        table = self._compute(*self._record.bounds(number), lambda done: None)
        _write(self._record.parts(self._folder)[number], table)
        return {"part": number}


def _on_ray(folder: Path, source: RowSource, missing: list[int], workers: int) -> Iterator[int]:
    """Have the processes of a Ray cluster compute parts; yield their numbers as they end.

    Raises:
        VitkitError: Ray is not installed, or a part failed.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        # A cluster that RAY_ADDRESS names, else this machine.
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # the listener has its own
    count = max(1, min(workers, len(missing)))
    # The listener stays in this process.
    silent: Any = replace(cast("Any", source), options=replace(source.options, listener=SILENT))
    parts = ray.data.from_items([{"part": number} for number in missing], override_num_blocks=len(missing))
    try:
        done = parts.map(
            _Worker,
            fn_constructor_args=(str(folder.absolute()), silent, str(Path.cwd())),
            concurrency=count,
            num_gpus=1 if ray.cluster_resources().get("GPU") else None,
        )
        for row in done.iter_rows():
            yield row["part"]
    except (ray.exceptions.RayError, ray.exceptions.UserCodeException) as error:
        raise VitkitError(_reason(error)) from error


def _import_ray() -> Any:
    """Import Ray and its data sets.

    Raises:
        VitkitError: it is not installed.
    """
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise VitkitError('--on ray needs Ray: pip install "vitkit[ray]".') from error
    return ray


def _reason(error: BaseException) -> str:
    """Return the message of our own error in a process of a cluster; else the last line of its error."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, VitkitError):
            return str(inner)
        inner = getattr(inner, "cause", None) or inner.__cause__
    lines = str(error).strip().splitlines()
    return f"Ray could not compute it: {lines[-1] if lines else type(error).__name__}"
