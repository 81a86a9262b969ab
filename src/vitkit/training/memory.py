"""An error that says what to change when images do not fit into memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from vitkit.errors import VitkitError


@contextmanager
def out_of_memory_explained(size: int, shape: torch.Size) -> Iterator[None]:
    """Say what to change when `size` images `(..., H, W)` do not fit into memory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        words = ("out of memory", "allocate memory", "not enough memory")
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in words):
            raise
        raise VitkitError(
            f"Out of memory with {size} images of {shape[-2]}x{shape[-1]} at a time. Run the same command "
            f"with --micro-batch-size {max(1, size // 2)}: gradients are summed up to the same batch. "
            "Or choose a smaller model or image size."
        ) from error
