"""`.npz` archives, written array by array, so that saving needs no second copy of the weights."""

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile, ZipInfo

import numpy as np
from torch import Tensor

from vitkit.durable import replace_file

_EPOCH = (1980, 1, 1, 0, 0, 0)  # no clock in the file: the same weights are the same bytes


class _Pipe(io.RawIOBase):
    """A file object that a zip archive is written into and read from again, piece by piece."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        piece = bytes(data)
        self.pieces.append(piece)
        self.length += len(piece)
        return len(piece)

    def take(self) -> Iterator[bytes]:
        yield from self.pieces
        self.pieces.clear()


def npz_chunks(arrays: Mapping[str, Tensor]) -> Iterator[bytes]:
    """Yield an `.npz` of float32 arrays as `numpy.savez` writes it, one array at a time."""
    pipe = _Pipe()
    with ZipFile(pipe, "w", ZIP_STORED) as archive:
        for name, tensor in arrays.items():
            array = np.ascontiguousarray(tensor.detach().float().cpu().numpy())
            with archive.open(ZipInfo(f"{name}.npy", _EPOCH), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
            yield from pipe.take()
    yield from pipe.take()


def npz_path(path: Path) -> Path:
    """Give a path the ending `.npz`, unless it has it."""
    return path if path.suffix == ".npz" else path.with_name(path.name + ".npz")


def write_npz(path: Path, arrays: Mapping[str, Tensor]) -> Path:
    """Put an `.npz` of these arrays at `path`, at one instant."""
    replace_file(path, npz_chunks(arrays))
    return path
