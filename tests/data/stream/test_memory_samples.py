"""Splits that are held in memory, and the memory that decoding takes."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.helpers.noise_samples import Noise
from vitkit.data.decode.image import Header
from vitkit.data.sources import check_decode_memory, keep_in_memory, largest_decoding
from vitkit.errors import DecodeError, VitkitError


def test_memory_holds_the_same_pixels() -> None:
    noise = Noise(10)
    seen: list[tuple[int, int]] = []
    headers: list[tuple[int, int]] = []

    def decoded(done: int, total: int) -> None:
        assert len(headers) == 10  # all of them come first
        seen.append((done, total))

    in_memory = keep_in_memory(noise, 10**6, decoded, lambda done, total: headers.append((done, total)))
    assert in_memory.held is not None and noise.held is None
    assert seen == headers == [(done, 10) for done in range(1, 11)]
    for index in range(10):
        np.testing.assert_array_equal(in_memory.decode(index), noise.decode(index))
        assert in_memory.held.size(index) == noise.size(index)
        assert (in_memory.key(index), in_memory.file(index), in_memory.header(index)) == (
            f"noise {index}",
            b"",
            noise.header(index),
        )
    assert in_memory.labels is noise.labels and len(in_memory) == 10


class Growing(Noise):
    """Sample 1 has another size when its pixels are read than its header said a moment ago."""

    def __init__(self, count: int, size: tuple[int, int]) -> None:
        super().__init__(count)
        self.new_size = size

    def made(self, index: int) -> NDArray[np.uint8]:
        return np.full((*self.new_size, 3), 77, dtype=np.uint8) if index == 1 else super().made(index)


@pytest.mark.parametrize("size", [(20, 30), (2, 2), (8, 9), (9, 9)])
@pytest.mark.parametrize("count", [2, 4])
def test_an_image_that_changes_its_size_leaves_its_neighbours_alone(
    count: int, size: tuple[int, int]
) -> None:
    samples = keep_in_memory(Growing(count, size), 10**6)
    assert samples.held is not None
    for index in range(count):
        if index != 1:
            np.testing.assert_array_equal(samples.decode(index), Noise(count).decode(index))
    if size == (9, 9):  # as the header said
        assert (samples.decode(1) == 77).all()
    else:
        reason = rf"changed while it was read: its header said 9 x 9 .* has {size[0]} x {size[1]}"
        with pytest.raises(DecodeError, match=reason):
            samples.decode(1)


class Demanding(Noise):
    def header(self, index: int) -> Header:
        return dataclasses.replace(super().header(index), decoding_bytes=index * 10**6)


def test_memory_of_all_workers_is_checked() -> None:
    largest = largest_decoding(Demanding(1000, bad=frozenset({0, 999})))
    assert 990 * 10**6 < largest <= 998 * 10**6
    assert largest_decoding(Demanding(1)) == 0
    assert largest_decoding(Noise(0)) == 0
    assert check_decode_memory(10**8, 4, None) is None
    assert check_decode_memory(10**8, 4, 4 * 10**8) is None
    assert check_decode_memory(10**8, 0, 10**8) is None
    warning = check_decode_memory(10**8, 4, 3 * 10**8)
    assert warning is not None
    assert "400 MB of memory at a time (4 x 100 MB" in warning and "300 MB are free" in warning
    assert "--workers" in warning and "--max-pixels" in warning


def test_memory_has_a_limit() -> None:
    needed = sum((8 + index % 3) * 9 * 3 for index in range(10))
    noise = Noise(10)
    assert keep_in_memory(noise, needed).held is not None
    assert keep_in_memory(noise, needed - 1) is noise
    noise.header = lambda index: Header("PNG", "RGB", (10**8, 10**8))  # type: ignore[method-assign]
    with pytest.raises(VitkitError, match=r"not enough memory for .* Give a lower memory_gib"):
        keep_in_memory(noise, 10**18)
