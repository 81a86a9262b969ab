"""Hold the decoded images of a small split in memory, and bound the memory for decoding a large one."""

from collections.abc import Callable
from copy import copy

import numpy as np

from vitkit.data.sources import Held, Samples, some_headers
from vitkit.errors import DecodeError, VitkitError


def keep_in_memory(
    samples: Samples,
    limit_bytes: int,
    progress: Callable[[int, int], None] | None = None,
    header_progress: Callable[[int, int], None] | None = None,
    channels: int = 3,
) -> Samples:
    """Decode a split into memory if its pixels fit into `limit_bytes`, else return the split as given.

    The headers decide before anything is decoded. A file whose pixels are of another size than its header
    said a moment ago is a bad file.

    Args:
        samples: the split.
        limit_bytes: largest size of all its pixels, a byte for each channel.
        progress: called as `progress(done, total)` after each decoded image.
        header_progress: called in the same way after each header; all headers are read first.
        channels: of the decoded images.

    Raises:
        VitkitError: this machine does not have that memory.
    """
    total = len(samples)
    sizes = np.zeros((total, 2), dtype=np.int64)
    bad, needed = dict[int, str](), 0
    for index in range(total):
        try:
            sizes[index] = samples.header(index).size
        except DecodeError as error:
            bad[index] = str(error)
        if header_progress is not None:
            header_progress(index + 1, total)
        needed += channels * int(sizes[index].prod())  # a bad file has size 0 x 0 and needs nothing
        if needed > limit_bytes:
            return samples
    lengths = channels * sizes.prod(axis=1)
    starts = np.cumsum(lengths) - lengths  # the end of each image less its length
    try:
        pixels = np.empty(needed, dtype=np.uint8)
    except MemoryError as error:
        raise VitkitError(
            f"There is not enough memory for {needed / 1e6:,.0f} MB of decoded images. Give a lower "
            "--memory-gib: with 0 they are read as they are needed."
        ) from error
    for index in range(total):
        if index not in bad:
            try:
                image = samples.decode(index)
                height, width = sizes[index].tolist()
                if image.shape[:2] != (height, width):
                    raise DecodeError(
                        f"the file changed while it was read: its header said {height} x {width} pixels "
                        f"(height x width), its image has {image.shape[0]} x {image.shape[1]}"
                    )
                pixels[starts[index] : starts[index] + image.size] = image.reshape(-1)
            except DecodeError as error:
                bad[index] = str(error)
        if progress is not None:
            progress(index + 1, total)
    held = copy(samples)
    held.held = Held(pixels, starts, sizes, bad, channels)
    return held


def largest_decoding(samples: Samples, look_at: int = 200) -> int:
    """Estimate the bytes of memory that decoding the most demanding image takes, from headers.

    At most `look_at` headers, evenly spread over the split, are read: a million would take minutes, and this
    is only for a warning.
    """
    return max((head.decoding_bytes for head in some_headers(samples, look_at)), default=0)


def check_decode_memory(largest: int, workers: int, available: int | None) -> str | None:
    """Return a warning if so many workers may need more memory for decoding than there is.

    Args:
        largest: bytes that decoding one image may take, by `largest_decoding`.
        workers: processes that decode at the same time; 0: this process alone.
        available: bytes that the machine can still give; None if it is unknown.
    """
    together = largest * max(1, workers)
    if available is None or together <= available:
        return None
    return (
        f"Decoding may take {together / 1e6:,.0f} MB of memory at a time ({max(1, workers)} x "
        f"{largest / 1e6:,.0f} MB for the largest images), but {available / 1e6:,.0f} MB are free. "
        "Give fewer --workers, or leave the largest images out with --max-pixels."
    )
