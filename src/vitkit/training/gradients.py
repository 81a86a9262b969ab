"""The gradients of a batch, computed in micro-batches that fit into memory."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.data.stream.batch import Batch
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


class Gradients:
    """Adds up the gradients of a batch, micro-batch by micro-batch.

    Args:
        model, objective: what computes the loss; both on one device.
        optimizer: takes back the gradients of the step before.
        autocast: makes the context of the forward pass.
        total_steps: updates of the whole run, which the objective is told.
        seed: of the run, from which all randomness follows.
        size: images at a time.
    """

    size: int
    """Images at a time: fewer than asked for once they did not fit into the memory of a GPU."""

    def __init__(
        self,
        model: nn.Module,
        objective: nn.Module,
        optimizer: torch.optim.Optimizer,
        autocast: Callable[[], AbstractContextManager[Any]],
        total_steps: int,
        seed: int,
        size: int,
    ) -> None:
        self.model, self.objective, self.optimizer = model, objective, optimizer
        self.autocast, self.total_steps, self.seed, self.size = autocast, total_steps, seed, size
        self.device = next(model.parameters()).device
        stream: Any = torch.cuda.Stream
        self.copies = stream(self.device) if self.device.type == "cuda" else None

    def compute(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Compute the gradients of a batch; where a GPU's memory is too small, in halves from this step on.

        Args:
            batch: the images and targets, on the CPU.
            step: updates made before this one, from which all randomness in it follows.

        Returns:
            The loss and the objective's metrics: scalars, means over the batch's readable images.

        Raises:
            VitkitError: a single image of a GPU, or a micro-batch elsewhere, does not fit into memory.
        """
        # An objective may have changed its buffers before the memory ran out.
        kept = [buffer.clone() for buffer in self.objective.buffers()]
        while True:
            size = min(self.size, len(batch))
            with out_of_memory_explained(size, batch.images.shape):
                try:
                    return self._add_up(batch, step, size)
                except torch.OutOfMemoryError:  # of a GPU: a CPU's allocator raises another error
                    if size == 1:
                        raise
            # Out here, where no error holds the tensors any more that were alive when it was raised.
            self.optimizer.zero_grad()
            for buffer, value in zip(self.objective.buffers(), kept, strict=True):
                buffer.copy_(value)
            torch.cuda.empty_cache()
            self.size = (size + 1) // 2

    def _add_up(self, batch: Batch, step: int, size: int) -> dict[str, Tensor]:
        """Add up the gradients of micro-batches of `size` images."""
        self.optimizer.zero_grad()
        # At least 1, so that a batch of unreadable images alone has zero gradients and not 0 / 0.
        valid = max(int(batch.mask.sum()), 1)
        totals: dict[str, Tensor] = {}
        for part, start in enumerate(range(0, len(batch), size)):
            # All randomness of the micro-batch (dropout, mixup) follows from its number: a resumed run
            # draws the same, and a checkpoint stores no state of any random generator. This seeds the
            # generators of the CPU and of every GPU.
            torch.manual_seed(step_seed(self.seed, step, part))
            micro = send_batch(batch.slice(start, start + size), self.device, self.copies)
            with self.autocast():
                loss, metrics = self.objective(self.model, micro, step, self.total_steps)
            # The loss is a mean over the micro-batch's readable images. Weighted by their fraction of the
            # batch, the gradients add up to that of the mean over the whole batch.
            fraction = micro.mask.sum() / valid
            (loss * fraction).backward()
            for name, value in {"loss": loss, **metrics}.items():
                before = totals.get(name, torch.zeros((), device=self.device))
                totals[name] = before + value.detach() * fraction
        return totals


def send_batch(batch: Batch, device: torch.device, copies: Any) -> Batch:
    """Copy a batch to a device.

    Args:
        batch: on the CPU.
        device: where to.
        copies: a CUDA stream for the copy, so that it is made while the step before is computed; None: the
            batch is copied when its turn comes.
    """
    if copies is None:
        return batch.to(device)
    with torch.cuda.stream(copies):
        moved = batch.to(device)
    current = torch.cuda.current_stream(device)
    current.wait_stream(copies)
    for tensor in moved.tensors():
        tensor.record_stream(current)  # else the memory would be given away when the copying stream is done
    return moved


def step_seed(seed: int, step: int, part: int) -> int:
    """Mix the run's seed, the step and the number of the micro-batch into one seed.

    A hash, because sums would collide (seed 1 at step 2, seed 2 at step 1), and generators that are seeded
    with neighbouring numbers may begin alike.
    """
    digest = hashlib.sha256(f"{seed}/{step}/{part}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # 63 bits: the seeds that every generator accepts
