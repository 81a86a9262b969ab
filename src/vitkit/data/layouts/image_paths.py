"""Find the images that a person names: files, and all images in folders, archives, tables and Parquet."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitkit.data.layouts import archives, folders, parquet, tables
from vitkit.data.listing import Files, Listing, Paths, files_below
from vitkit.data.paths import expand_home
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class NamedImage:
    """An image that a person named by its file, or by a folder, an archive or a table that holds it."""

    path: Path
    """Its file; in an archive or a Parquet file the place there, such as photos.zip/cats/1.jpg."""
    files: Files | None = None
    """The images of the archive or the Parquet files that hold it; None: it is a file of its own."""
    number: int = 0
    """Its number in `files`."""

    @property
    def holder(self) -> Path:
        """The file on the disk that holds it: its own, an archive or a Parquet file."""
        return self.path if self.files is None else self.files.path(self.number)

    def content(self) -> Path | bytes:
        """Return its file, or its bytes.

        Raises:
            DecodeError: it cannot be read from the archive or the Parquet file.
        """
        return self.path if self.files is None else self.files.file(self.number)


def find_images(names: Iterable[str]) -> Iterator[NamedImage]:
    """Yield the images that a person names: files, or all images in a folder, a .zip or .tar, a .csv of
    paths, a .parquet or a folder of Parquet files.

    In a folder "photo 2" comes before "photo 10". A missing file is yielded too, to be reported beside the
    files that cannot be read.

    Raises:
        VitkitError: a name is an address, there is no image below a folder, or an archive or a table cannot
            be read.
    """
    for name in names:
        refuse_address(name)
        path = expand_home(name)
        ending = path.name.lower() if path.is_file() else ""
        if path.is_dir() and (files := folders.image_files(path)):
            yield from map(NamedImage, sorted(files, key=_natural))
        elif path.is_dir():
            if not (tabular := files_below(path, lambda name: name.lower().endswith(".parquet"))):
                raise VitkitError(f"No image below {path}.")
            yield from _listed(path, parquet.list_parquet(path, tabular, labelled=False))
        elif ending.endswith(".parquet"):
            yield from _listed(path.parent, parquet.list_parquet(path.parent, [path], labelled=False))
        elif ending.endswith(".csv"):
            yield from _listed(path.parent, tables.list_csv(path, labelled=False))
        elif ending.endswith(archives.ARCHIVE_ENDINGS):
            yield from _listed(path, archives.list_archive(path, partial=True, labelled=False))
        else:
            yield NamedImage(path)


def _listed(root: Path, listing: Listing) -> Iterator[NamedImage]:
    """Yield the images of all splits of a listing, in its order."""
    files = listing.files
    for number in np.sort(np.concatenate([numbers for numbers, _ in listing.splits.values()])).tolist():
        if isinstance(files, Paths):
            yield NamedImage(files.path(number))
        else:
            yield NamedImage(root / files.key(number), files, number)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the key that sorts "photo 2" before "photo 10"."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def refuse_address(path: str) -> None:
    """Refuse an image that is given by a network address; the error repeats the address as it was given.

    Raises:
        VitkitError: the path is an address.
    """
    # Of two slashes pathlib leaves one.
    if (match := re.match(r"([A-Za-z][\w+.-]+):/+(?=[^/])", path)) and not Path(path).exists():
        raise VitkitError(
            f"{match[1]}://{path[match.end() :]} is an address, and images are read from this machine alone: "
            "download it first, then give the file."
        )
