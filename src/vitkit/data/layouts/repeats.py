"""Find images that a data set has several times: copies of a file, or the same pixels in another file.

Every image is decoded once and its pixels are hashed, where the files are small together and at most 10,000.
Elsewhere decoding would take longer than people wait for a list of images: files are compared by their bytes,
and only those that agree with another one in size and in their last bytes are read whole.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitkit.data.files import regular_file
from vitkit.durable import hash_file
from vitkit.errors import DecodeError, VitkitError
from vitkit.text import pluralize

if TYPE_CHECKING:
    from vitkit.data.sources import Samples

DECODED_BELOW = 128 << 20
"""Bytes of encoded images up to which pixels are compared."""
MOST_DECODED = 10_000
"""Images up to which pixels are compared: some seconds of decoding on one core, whenever the data is opened.
The 60,000 images of CIFAR-10 took 36 s to decode and 5 s to compare by bytes."""
COMPARED_BELOW = 200_000
"""Images up to which they are compared at all: opening more files takes minutes."""
_END = 4096  # bytes of a file's end, which differs more than its head with the camera's settings


def pixel_digest(pixels: NDArray[np.uint8]) -> bytes:
    """Hash a decoded image `(H, W, 3)`; images of equal size and pixels have equal hashes."""
    height, width = pixels.shape[:2]
    return hashlib.sha256(f"{height} {width} ".encode() + pixels.tobytes()).digest()


Digests = dict[bytes | Path, bytes]
"""Hashes of the pixels of images that were decoded to be compared, by path or by the hash of their bytes."""


def find_repeats(parts: Sequence["Samples"], decoded: Digests | None = None) -> NDArray[np.int64] | None:
    """Number images so that equal images have the same number.

    Args:
        parts: splits, or the whole of a data set as one.
        decoded: digests of images that were decoded before; images that are decoded now are added.

    Returns:
        `(N,)`, the parts one after the other: the position of the first image of the same pixels. An
        unreadable image equals only files of the same bytes. None for more than `COMPARED_BELOW` images.
    """
    if sum(map(len, parts)) > COMPARED_BELOW:
        return None
    images = [(part, index) for part in parts for index in range(len(part))]
    sizes = []  # of the encoded images in bytes; -1 where there is no such file, or it is damaged
    for part, index in images:
        try:
            file = part.file(index)
            sizes.append(len(file) if isinstance(file, bytes) else file.stat().st_size)
            del file  # a member of an archive may be large
        except (DecodeError, OSError, ValueError):  # the last for a name that no file can have
            sizes.append(-1)
    if len(images) <= MOST_DECODED and sum(size for size in sizes if size > 0) <= DECODED_BELOW:
        decoded = {} if decoded is None else decoded
        digests = list[bytes | None]()
        for part, index in images:
            try:
                file = part.file(index)
                key = hashlib.sha256(file).digest() if isinstance(file, bytes) else file
                del file
                if key not in decoded:
                    decoded[key] = pixel_digest(part.decode(index))
                digests.append(decoded[key])
            except DecodeError:  # it equals only files of the same bytes
                digests.append(bytes_digest(part, index))
    else:
        # Of the images that agree with another one in size and last bytes; None for the others.
        of_size = Counter(sizes)
        sized = zip(images, sizes, strict=True)
        ends = [(size, _end(*image)) if size >= 0 and of_size[size] > 1 else None for image, size in sized]
        alike = Counter(ends)
        pairs = zip(images, ends, strict=True)
        digests = [bytes_digest(*image) if end and alike[end] > 1 else None for image, end in pairs]
    first: dict[bytes, int] = {}
    numbers = (i if digest is None else first.setdefault(digest, i) for i, digest in enumerate(digests))
    return np.fromiter(numbers, np.int64)


def repeats_of_training(
    splits: Mapping[str, "Samples"],
    others: Sequence[str],
    same: Mapping[str, NDArray[np.int64]] | None = None,
    decoded: Digests | None = None,
) -> dict[str, NDArray[np.int64]]:
    """Find the images of other splits that are training images too.

    Args:
        splits: of a data set, by name.
        others: names of splits other than "train".
        same: `ImageData.same`; splits that are not in it are compared here.
        decoded: as `find_repeats` takes it.

    Returns:
        By split, the indices of these images, ascending; empty where images cannot be compared.
    """
    names = [name for name in others if name in splits and name != "train"]
    if "train" not in splits or not names:
        return {}
    if same is None or any(name not in same for name in ("train", *names)):
        numbers = find_repeats([splits["train"], *(splits[name] for name in names)], decoded)
        if numbers is None:
            return {}
        ends = np.cumsum([len(splits[name]) for name in ("train", *names)])
        same = dict(zip(("train", *names), np.split(numbers, ends[:-1]), strict=True))
    trained = np.unique(same["train"])
    return {name: np.flatnonzero(np.isin(same[name], trained)) for name in names}


def describe_repeats(count: int, split: str, where: str = "train") -> str:
    """Say that images of a split are in `where` too, as the beginning of a sentence."""
    begin = pluralize(count, f"image of {split} is", f"images of {split} are")
    return f"{begin} in {where} too, pixel for pixel"


def _end(part: "Samples", index: int) -> bytes:
    """Return the last bytes of an encoded image; nothing of one that cannot be read."""
    try:
        file = part.file(index)
        if isinstance(file, bytes):
            return file[-_END:]
        with regular_file(file) as stream:
            stream.seek(max(0, file.stat().st_size - _END))
            return stream.read(_END)
    except (OSError, VitkitError):
        return b""


def content_digest(file: bytes | Path) -> bytes:
    """Hash an encoded image: its bytes, or those of its file."""
    return hashlib.sha256(file).digest() if isinstance(file, bytes) else bytes.fromhex(hash_file(file)[1])


def bytes_digest(part: "Samples", index: int) -> bytes | None:
    """Hash an encoded image; None where it cannot be read."""
    try:
        return content_digest(part.file(index))
    except (OSError, ValueError, VitkitError):
        return None
