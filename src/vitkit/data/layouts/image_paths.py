"""Find the image files that a person names, one by one or as folders."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from vitkit.data.layouts.folders import image_files
from vitkit.data.paths import expand_home
from vitkit.errors import VitkitError


def find_images(names: Iterable[str]) -> Iterator[Path]:
    """Yield the image files that are named: files themselves, and of folders every image below.

    In a folder "photo 2" comes before "photo 10".
    A file that is not there is yielded too, to be reported beside those that cannot be read.

    Raises:
        VitkitError: a name is an address, or there is no image below a folder.
    """
    for name in names:
        refuse_address(name)
        path = expand_home(name)
        if not path.is_dir():
            yield path
            continue
        files = image_files(path)
        if not files:
            raise VitkitError(f"No image below {path}.")
        yield from sorted(files, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the key that sorts "photo 2" before "photo 10"."""
    parts = re.split(r"([0-9]+)", str(path))
    return [(int(part) if i % 2 else 0, part) for i, part in enumerate(parts)]


def refuse_address(path: str) -> None:
    """Refuse an image that is given by a network address; the error repeats the address as it was given.

    Raises:
        VitkitError: the path is an address.
    """
    match = re.match(r"([A-Za-z][\w+.-]+):/+(?=[^/])", path)  # one slash is what pathlib leaves of two
    if match and not Path(path).exists():
        raise VitkitError(
            f"{match[1]}://{path[match.end() :]} is an address, and images are read from this machine alone: "
            "download it first, then give the file."
        )
