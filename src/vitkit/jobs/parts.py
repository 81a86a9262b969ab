"""Compute a table with a row for each image in parts, here or by the processes of a Ray cluster.

A part is a Parquet file that is there whole or not at all, and its rows follow from its number alone. So a
command that was killed goes on with the missing parts, a part that a cluster computes twice is the same
twice, and every image has one row. The record in the folder keeps a checksum of each finished part: a part
without one, or of other bytes, is computed again. How many rows there are is never taken from the folder,
which may be somebody else's. Ray's own checkpoint of a job would be a second state, and is not used.
"""

import io
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from vitkit._version import __version__
from vitkit.config import describe_value, read, to_json, write
from vitkit.data.listing import PARTS_RECORD
from vitkit.durable import read_regular_file, replace_file
from vitkit.errors import VitkitError
from vitkit.jobs.options import Cluster, require_at_least
from vitkit.listener import SILENT, Listener
from vitkit.runs.folder import Owner, claim, require_folder
from vitkit.text import visible

PART_ROWS = 4096
"""Approximate rows of a part: a few megabytes of features, and a minute of work for a ViT-B/16 on two
cores."""

DIGESTS = {"model": "another model", "images": "other images"}
"""The facts of a table that are digests, and the phrase for another one."""


@dataclass(frozen=True)
class PartFile:
    """The file of a finished part."""

    bytes: int
    xxh3_128: str


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
    finished: Mapping[str, PartFile] = field(default_factory=dict)
    """The finished parts by the names of their files."""

    def parts(self, folder: Path) -> list[Path]:
        """Name the files of all parts."""
        return [folder / f"part-{number:05d}.parquet" for number in range(-(-self.rows // self.part_rows))]

    def bounds(self, number: int) -> tuple[int, int]:
        """Return the first row of a part, and the row after its last one."""
        first = number * self.part_rows
        return first, min(first + self.part_rows, self.rows)


Rows = tuple[PartsRecord, pa.Schema, ComputeRows]
"""The record of what decides the rows of a table, their columns, and the function that computes them."""
OpenRows = Callable[[Listener], Rows]
"""A function that loads the model and lists the images, once in each process that computes; a cluster sends
it to its processes."""


def part_rows(batch_size: int) -> int:
    """Choose the rows of a part: whole batches, so that only the last batch of all is smaller."""
    return batch_size * max(1, PART_ROWS // batch_size)


@contextmanager
def computed_parts(
    folder: Path, open_rows: OpenRows, listener: Listener, on: Cluster = "here", processes: int = 1
) -> Iterator[tuple[list[Path], int]]:
    """Compute the parts that are missing in a folder, which is locked until the block ends.

    Args:
        folder: the folder of the parts; made if it is missing.
        open_rows: opens the rows.
        listener: hears the progress and remarks.
        on, processes: this process, or so many of a Ray cluster compute.

    Yields:
        The files of all parts, and the number of parts that were there before.

    Raises:
        VitkitError: the folder holds something else; another process is at work in it; the rows cannot be
            computed; or there is no Ray.
    """
    require_at_least(1, processes=processes)
    if on == "here" and processes != 1:
        raise VitkitError("Several --processes compute on Ray: give --on ray, or leave them out.")
    require_folder(folder)
    if on == "ray":
        _import_ray()
    record, columns, compute = open_rows(listener)
    with claim(_owner(record), folder):
        if (begun := read(PartsRecord, folder / PARTS_RECORD)) is None:
            write(folder / PARTS_RECORD, record)
        else:
            record = replace(record, finished=begun.finished)
        paths = record.parts(folder)
        missing = [i for i, path in enumerate(paths) if not _is_whole(path, i, record, columns)]
        done = record.rows - sum(last - first for first, last in map(record.bounds, missing))

        def finish_here() -> Iterator[tuple[int, PartFile]]:
            for number in missing:
                table = compute(*record.bounds(number), lambda rows: progress(done + rows))
                yield number, _write(paths[number], table)

        with listener.progress("computing", record.rows) as progress:
            if done:
                progress(done)
            is_remote = on == "ray" and missing
            finished = _on_ray(folder, open_rows, missing, processes) if is_remote else finish_here()
            for number, part in finished:
                record = replace(record, finished={**record.finished, paths[number].name: part})
                write(folder / PARTS_RECORD, record)
                first, last = record.bounds(number)
                done += last - first
                progress(done)
        yield paths, len(paths) - len(missing)


def remove_parts(folder: Path) -> None:
    """Remove a folder of parts that this process has locked."""
    for path in sorted(folder.iterdir(), reverse=True):  # the lock goes last
        path.unlink()
    with suppress(OSError):  # another command may have begun there, since the lock is gone
        folder.rmdir()


def _owner(record: PartsRecord) -> Owner:
    """Make the owner of the folder of a table's parts, which lists what decides the rows and differs."""

    def changes(folder: Path) -> list[str]:
        if (before := read(PartsRecord, folder / PARTS_RECORD)) is None:
            return []
        changed = [name for name, value in record.facts.items() if before.facts.get(name) != value]
        listed = [DIGESTS.get(name, f"{name} {describe_value(before.facts.get(name))}") for name in changed]
        if not listed and (before.rows, before.part_rows) != (record.rows, record.part_rows):
            return [f"{before.rows:,} rows in parts of {before.part_rows:,}"]
        return listed

    return Owner("table", PARTS_RECORD, changes)


def _is_whole(path: Path, number: int, record: PartsRecord, columns: pa.Schema) -> bool:
    """Whether a finished part is on the disk as it was written."""
    first, last = record.bounds(number)
    try:
        part = record.finished[path.name]
        content = read_regular_file(path, part.bytes)
        if xxhash.xxh3_128_hexdigest(content) != part.xxh3_128:
            return False
        with pq.ParquetFile(io.BytesIO(content)) as file:
            return bool(file.metadata.num_rows == last - first and file.schema_arrow.equals(columns))
    except Exception:  # of damaged files Arrow raises a dozen kinds
        return False


def read_part(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read columns of a finished part, all of them if left out.

    Raises:
        VitkitError: it is damaged, though its checksum is right: it was written so.
    """
    try:
        return pq.read_table(path, columns=columns)
    except Exception as error:
        raise VitkitError(
            f"{path} is damaged: {visible(str(error)[:300])}. Remove it, and run the same command again."
        ) from error


def _write(path: Path, table: pa.Table) -> PartFile:
    """Write a part, which is there whole or not at all."""
    stream = io.BytesIO()
    # Features hardly become smaller: compression would cost more time than it is worth.
    pq.write_table(table, stream, compression="none")
    content = stream.getvalue()
    replace_file(path, [content])
    return PartFile(len(content), xxhash.xxh3_128_hexdigest(content))


class _Worker:
    """A process of a cluster that computes parts: an actor of Ray."""

    def __init__(self, folder: str, open_rows: OpenRows, working: str) -> None:
        # Paths of images and models may be relative to the folder of the command, and a cluster works in
        # another folder. Where this machine has no such folder, absolute paths work all the same.
        with suppress(OSError):
            os.chdir(working)
        self._folder = Path(folder)
        if (begun := read(PartsRecord, self._folder / PARTS_RECORD)) is None:
            raise VitkitError(f"{folder} cannot be seen by all machines: put --out on a disk that all share.")
        record, _, self._compute = open_rows(SILENT)
        self._record = replace(record, part_rows=begun.part_rows)  # the command divides the rows
        _owner(self._record).refuse_others(self._folder)  # other images and weights on this machine

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute and write the part of a number, and return the number and the facts of the file."""
        number = int(row["part"])
        table = self._compute(*self._record.bounds(number), lambda done: None)
        return {"part": number, **to_json(_write(self._record.parts(self._folder)[number], table))}


def _on_ray(
    folder: Path, open_rows: OpenRows, missing: list[int], workers: int
) -> Iterator[tuple[int, PartFile]]:
    """Have the processes of a Ray cluster compute parts; yield their numbers and files as they end.

    Raises:
        VitkitError: Ray is not installed, or a part failed.
    """
    ray = _import_ray()
    if not ray.is_initialized():
        # A cluster that RAY_ADDRESS names, else this machine.
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the listener has its own
    parts = ray.data.from_items([{"part": number} for number in missing], override_num_blocks=len(missing))
    try:
        done = parts.map(
            _Worker,
            fn_constructor_args=(str(folder.absolute()), open_rows, str(Path.cwd())),
            concurrency=min(workers, len(missing)),
            num_gpus=1 if ray.cluster_resources().get("GPU") else None,
        )
        for row in done.iter_rows():
            yield row["part"], PartFile(row["bytes"], row["xxh3_128"])
    except (ray.exceptions.RayError, ray.exceptions.UserCodeException) as error:
        # Our own error in a process of the cluster has a message for people; of others the last line has.
        inner: BaseException | None = error
        while inner is not None and not isinstance(inner, VitkitError):
            inner = getattr(inner, "cause", None) or inner.__cause__
        last = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise VitkitError(f"Ray could not compute it: {last}" if inner is None else str(inner)) from error


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
