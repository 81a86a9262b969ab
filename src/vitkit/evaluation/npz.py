"""Write and read arrays in an `.npz` file in parts, so that memory holds no more than a part."""

import os
import stat
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitkit.errors import VitkitError

PART = 1 << 22
"""Number of logits in a part; scoring makes a few copies of it in float64, 32 MiB each."""

Rows = NDArray[np.float32]


def rows_of_a_part(classes: int) -> int:
    """Return the number of images whose logits make a part."""
    return max(1, PART // max(classes, 1))


class OpenedArrays:
    """An `.npz` file opened for reading in parts.

    Nothing in the file is trusted: whatever is wrong with it is a `VitkitError`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "OpenedArrays":
        try:
            # Neither a pipe that nobody writes to nor a device may hold us up.
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise VitkitError(f"No file of predictions at {self.path}: run the evaluation again.") from None
        except OSError as error:
            raise VitkitError(f"{self.path} cannot be read: {error.strerror}.") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self.damaged("no regular file")
        self._file = os.fdopen(descriptor, "rb")
        try:
            self._archive = zipfile.ZipFile(self._file)
        except Exception as error:  # zipfile promises no list of what a damaged archive raises
            self._file.close()
            raise self.damaged(error) from None
        return self

    def __exit__(self, *exception: object) -> None:
        self._archive.close()
        self._file.close()

    def damaged(self, reason: object) -> VitkitError:
        """Make the error that says what was expected of the file."""
        return VitkitError(
            f"{self.path}: expected an .npz file with logits, labels, ids, bad, found something else "
            f"({' '.join(str(reason).split())[:200] or type(reason).__name__}). Run the evaluation again to "
            "write it anew."
        )

    def shape(self, name: str) -> tuple[int, ...]:
        """Read the shape of an array from its header."""
        with self._member(name) as (_, shape, _):
            return shape

    def integers(self, name: str) -> NDArray[np.int64]:
        """Read a whole array of integers `(N,)`."""
        with self._member(name) as (member, shape, dtype):
            if dtype.kind not in "iu" or len(shape) != 1:
                raise self.damaged(f"{name} is {dtype} of shape {shape}, not integers (N,)")
            content = self._content(member, shape[0] * dtype.itemsize, whole=True)
            numbers = np.frombuffer(content, dtype)
            if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < 2**62:
                raise self.damaged(f"{name} from {numbers.min()} to {numbers.max()}")
            return numbers.astype(np.int64)

    def flags(self, name: str) -> NDArray[np.bool_]:
        """Read a whole array of zeros and ones `(N, K)`."""
        with self._member(name) as (member, shape, dtype):
            if dtype != np.uint8 or len(shape) != 2:
                raise self.damaged(f"{name} is {dtype} of shape {shape}, not bytes (N, K)")
            content = np.frombuffer(self._content(member, shape[0] * shape[1], whole=True), np.uint8)
            if content.size and content.max() > 1:
                raise self.damaged(f"{name} up to {content.max()}, not 0 and 1")
            return content.reshape(shape).astype(bool)

    def rows(self, name: str) -> Iterator[Rows]:
        """Yield an array of finite floats `(N, K)`, some rows at a time."""
        with self._member(name) as (member, shape, dtype):
            if dtype.kind != "f" or len(shape) != 2 or shape[1] < 1:
                raise self.damaged(f"{name} is {dtype} of shape {shape}, not floats (N, K)")
            count = rows_of_a_part(shape[1])
            for start in range(0, shape[0], count):
                stop = min(start + count, shape[0])
                size = (stop - start) * shape[1] * dtype.itemsize
                content = self._content(member, size, whole=stop == shape[0])
                with np.errstate(all="ignore"):
                    part = np.frombuffer(content, dtype).reshape(-1, shape[1]).astype(np.float32)
                if not np.isfinite(part).all():
                    raise self.damaged(f"{name} that are not finite")
                yield part

    def _member(self, name: str) -> "_Member":
        return _Member(self, self._archive, name)

    def _content(self, member: IO[bytes], size: int, whole: bool) -> bytes:
        """Read `size` bytes; with `whole`, there may be no more, and the archive's checksum is compared."""
        try:
            content = member.read(size)
            rest = member.read(1) if whole else b""
        except Exception as error:  # wrong checksum and so on
            raise self.damaged(error) from None
        if len(content) != size or rest:
            raise self.damaged("an array shorter or longer than its header says")
        return content


class _Member:
    """One array of the file: where its content begins, its shape and its type."""

    def __init__(self, arrays: OpenedArrays, archive: zipfile.ZipFile, name: str) -> None:
        self._arrays, self._archive, self._name = arrays, archive, f"{name}.npy"

    def __enter__(self) -> tuple[IO[bytes], tuple[int, ...], np.dtype[Any]]:
        try:
            info = self._archive.getinfo(self._name)
            if info.compress_type != zipfile.ZIP_STORED:  # stored arrays are no larger than the file
                raise ValueError(f"{self._name} is compressed")
            self._file = self._archive.open(info)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a header that numpy has to repair is damaged
                version = npy.read_magic(self._file)
                read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
                shape, column_major, dtype = read(self._file)
            if column_major or dtype.hasobject:
                raise ValueError(f"{self._name} is column-major or holds Python objects")
            if dtype.itemsize * np.prod([*shape, 1], dtype=object) > info.file_size:
                raise ValueError(f"{self._name} is shorter than its header says")
        except Exception as error:  # neither zipfile nor numpy promises a list of what a damaged file raises
            raise self._arrays.damaged(error) from None
        return self._file, shape, dtype

    def __exit__(self, *exception: object) -> None:
        self._file.close()


class _Sink:
    """A file that only takes writes, and hands on what was written."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, content: Any) -> int:
        self._chunks.append(bytes(content))
        return len(self._chunks[-1])

    def flush(self) -> None:
        """Do nothing: no bytes are kept back."""

    def drain(self) -> Iterator[bytes]:
        chunks, self._chunks = self._chunks, []
        yield from chunks


def npz_chunks(
    arrays: Mapping[str, tuple[tuple[int, ...], np.dtype[Any], Iterable[NDArray[Any]]]],
) -> Iterator[bytes]:
    """Yield the bytes of an `.npz` file, as `numpy.load` reads it, of arrays that come in parts.

    Args:
        arrays: by name, the shape, the type, and the content along the first axis.
    """
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # writing needs no seeking
        for name, (shape, dtype, parts) in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                header = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(member, header)
                for part in parts:
                    member.write(np.ascontiguousarray(part, dtype).data)
                    yield from sink.drain()
    yield from sink.drain()
