"""Compute the features of many images into files, each beside the name of its image."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vitkit.data import paths, sources
from vitkit.data.config import Splits
from vitkit.durable import replace_file, sync_folder
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor, explain_no_features
from vitkit.jobs.engines import load_ready
from vitkit.jobs.options import SINGLE_FILES, Cluster, LoadingOptions, StrPath, require_at_least
from vitkit.jobs.parts import PartsRecord, Rows, computed_parts, part_rows, read_part, remove_parts
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.config import Precision
from vitkit.result import Result, Section, unreadable
from vitkit.runs.folder import kind_of, refuse_taken
from vitkit.text import csv_line, join_names, pluralize, say_continued

NAMES = ".names.csv"
"""The ending of the file that names the rows of a .npy file; a Parquet file names them itself."""


@dataclass(frozen=True, repr=False)
class Embedded(Result):
    """The files that hold the features of images."""

    model: str
    data: str
    """The given model and images."""
    out: Path
    """The folder of Parquet files, the Parquet file, or the .npy file."""
    images: int
    width: int
    """D, the number of features of an image."""
    continued: int
    """Parts that were on the disk already."""
    rejects: dict[str, str]
    """Name and reason of every image that could not be read: its features are missing, or NaN in .npy."""
    retry: tuple[Path, ...] = ()
    """The files to remove, so that the same command reads the unreadable images again."""
    names: Path | None = None
    """The .names.csv of a .npy file."""

    def headline(self) -> Sequence[str]:
        """Say what the features are of, and where they are."""
        again = say_continued(self.continued)
        images = pluralize(self.images, "image")
        where = [f"Features of {images}, {self.width:,} of each, in {self.out}{again}."]
        return where if self.names is None else [*where, f"The names of the rows are in {self.names}."]

    def sections(self) -> Sequence[Section]:
        """Return the images that have no features, and how to read them again."""
        files = join_names([str(path) for path in self.retry])
        again = f"To read them again, mend them, remove {files} and give the same command."
        return (Section("", (*unreadable(self.rejects, "have no features"), again if self.retry else None)),)

    def following(self) -> Sequence[str]:
        """Return a line that reads the features, and a command that measures what they are worth."""
        reader = "numpy.load" if self.names else "pandas.read_parquet"
        fewshot = shlex.join(["vitkit", "fewshot", self.model, self.data])
        remark = "(how well classes are learned from features)"
        return f"{reader}({str(self.out)!r}) in Python", f"{fewshot}   {remark}"


def _open_rows(
    path: StrPath, data: StrPath, options: dict[str, Any], batch_size: int, workers: int, listener: Listener
) -> Rows:
    """Load the model and list the images of a table of features.

    Raises:
        VitkitError: as `embed`.
    """
    place = kind_of(path)
    if place.kind == "exported model":
        raise VitkitError(
            f"{place.name} is an exported engine, which computes logits alone: give the model that it "
            "was exported from."
        )
    ready = load_ready(place, "evaluation", answers=False, **options)
    model: Any = ready.model
    where: Any = ready.device
    if reason := explain_no_features(model.config):
        raise VitkitError(f"{place.name} {reason}.")
    extractor = FeatureExtractor(model, ready.preprocessing, where, ready.precision, batch_size, workers)
    with listener.progress("listing images"):
        opened = sources.open_data(str(data), Splits(0, 0), extractor.preprocessing.decode, labelled=False)
    # All splits one after the other, and the split of each image, where there are several.
    parts, (first, *_) = opened.splits, opened.splits.values()
    numbers = np.concatenate([samples.numbers for samples in parts.values()])
    samples = sources.Samples(first.files, numbers, np.zeros((len(numbers), 0), dtype=bool), first.rule)
    splits = [split if len(parts) > 1 else None for split, part in parts.items() for _ in range(len(part))]
    text, width = pa.string(), model.config.feature_width
    features = pa.list_(pa.float32(), width)
    columns = pa.schema({"image": text, "split": text, "features": features, "error": text})

    def compute(first: int, last: int, progress: Callable[[int], None]) -> pa.Table:
        computed = extractor.compute(samples, np.arange(first, last), progress)
        rows = np.zeros((last - first, width), np.float32)
        rows[computed.readable] = computed.rows
        errors = np.full(last - first, None)
        errors[~computed.readable] = computed.reasons
        names, missing = [samples.key(index) for index in range(first, last)], pa.array(~computed.readable)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width, mask=missing)
        cells = {"image": names, "split": splits[first:last], "features": lists, "error": errors}
        return pa.table(cells, columns)

    facts = {"model": extractor.fingerprint(), "images": opened.fingerprint(), "batch_size": batch_size}
    return PartsRecord(facts, len(samples), part_rows(batch_size)), columns, compute


def embed(
    path: StrPath,
    data: StrPath,
    out: StrPath | None = None,
    *,
    batch_size: int = 128,
    workers: int = 0,
    on: Cluster = "here",
    processes: int = 1,
    device: str = "auto",
    precision: Precision = "auto",
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Embedded:
    """Compute the features of images by a frozen model, and keep them in files.

    Args:
        path: the model: a run folder, or a checkpoint of any library.
        data: images: "digits" (built in), a folder of images, a .csv, or .parquet files.
        out: folder of .parquet files, or a file that ends in .parquet or .npy; left out, one below features/,
            named by the images and the model. The same command again continues there.
        batch_size: images that are computed at a time.
        workers: processes that decode images; with 0 the main process decodes.
        on: here: this process; ray: the processes of a Ray cluster, which RAY_ADDRESS names, else of this
            machine (the extra ray). All machines must see the images, the model and the files that are
            written.
        processes: processes on Ray, each with a GPU or a processor core of its own.
        device: where to compute: "auto" (a GPU if there is one), "cpu", "gpu" or "cuda:1".
        precision: number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has
            it, else float32.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how the model is read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Returns:
        The files and what is in them. The features of an image are the input of the model's head:
        `ImageModel.features`. Parquet files have the columns image, split, features and error, a file for
        each part or one for all. A .npy file is an array `(N, D)` of float32, beside a .names.csv with the
        names of its rows.

    Raises:
        VitkitError: the model has no single row of features; there are no such images; `out` holds features
            of another model or of other images.
    """
    if not data or not path:
        raise VitkitError("Features need a model and images: vitkit embed MODEL DATA.")
    require_at_least(1, batch_size=batch_size)
    # The working folder, ".", has no name.
    named = "-".join(Path(str(source)).name or "images" for source in (data, path))
    listener = hushed(listener, quiet)
    out = Path("features") / re.sub(r"[/:\\]", "-", named) if out is None else Path(out)
    is_file = out.suffix.lower() in SINGLE_FILES
    names = out.with_suffix(NAMES) if out.suffix.lower() == ".npy" else None
    folder = out.with_name(f".{out.name}.parts") if is_file else out
    if is_file:
        refuse_taken(out)
        if Path(paths.absolute_spec(str(data))) in out.resolve().parents:
            raise VitkitError(
                f"{out} would be listed as images by the next command, because it is below {data}. Choose an "
                "--out elsewhere, or the name of a folder, which is passed over."
            )
    if names is not None and not folder.exists():  # beside parts, the names are of an earlier attempt
        refuse_taken(names)
    of_model = {"device": device, "precision": precision, **load}
    rows = partial(_open_rows, path, data, of_model, batch_size, workers)
    with computed_parts(folder, rows, listener, on, processes) as (parts, continued):
        errors = dict[Path, list[dict[str, str]]]()
        for part in parts:
            table = read_part(part, ["image", "error"])
            errors[part] = table.filter(table["error"].is_valid()).to_pylist()
        images = sum(pq.read_metadata(part).num_rows for part in parts)
        width = pq.read_schema(parts[0]).field("features").type.list_size
        if is_file:
            with listener.progress(f"writing {out.name}"):
                _join(parts, out, names, images, width)
            remove_parts(folder)
    rejects = {row["image"]: row["error"] for part in parts for row in errors[part]}
    retry = [out, names] if is_file else [part for part in parts if errors[part]]
    again = tuple(path for path in retry if rejects and path is not None)
    return Embedded(str(path), str(data), out, images, width, continued, rejects, again, names)


def _join(parts: list[Path], out: Path, names: Path | None, images: int, width: int) -> None:
    """Write all parts into one Parquet file, or into an array if there is a file of names.

    The file appears whole, as with `replace_file`, but is never whole in memory.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    lines = [csv_line(["image", "split", "error"])]
    try:
        if names is None:
            with pq.ParquetWriter(temporary, pq.read_schema(parts[0]), compression="none") as writer:
                for part in parts:
                    writer.write_table(read_part(part))
        else:
            array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.float32, shape=(images, width))
            for part in parts:
                table = read_part(part)
                features = table["features"].combine_chunks()
                rows = array[len(lines) - 1 :][: len(table)]
                rows[:] = features.values.to_numpy(zero_copy_only=False).reshape(-1, width)
                rows[features.is_null().to_numpy(zero_copy_only=False)] = np.nan
                cells = (table[name].to_pylist() for name in ("image", "split", "error"))
                lines += [csv_line([cell or "" for cell in row]) for row in zip(*cells, strict=True)]
            array.flush()
        refuse_taken(out)  # made since this began
        if names is not None:
            replace_file(names, ["\n".join([*lines, ""]).encode()])
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(out)
        sync_folder(out.parent)
    finally:
        temporary.unlink(missing_ok=True)
