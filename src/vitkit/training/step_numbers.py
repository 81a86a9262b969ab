"""The numbers of a step on their way from the device, and the step that they stop."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitkit.data.batch import Batch
from vitkit.training.finite import NonFiniteError

IDS_SHOWN = 5
"""Images of a batch that an error names."""


@dataclass(frozen=True)
class StepNumbers:
    """The loss, the metrics and the gradient's norm of a step, which a GPU may still be computing."""

    names: tuple[str, ...]
    values: Tensor
    """On the CPU; there when `arrived` says so."""
    arrived: Any
    """A CUDA event; None where the values are there."""
    batch: Batch
    step: int
    rate: float

    def read(self) -> dict[str, float]:
        """Wait for the numbers.

        Raises:
            NonFiniteError: the loss or the gradient's norm is not finite.
        """
        if self.arrived is not None:
            self.arrived.synchronize()
        numbers = dict(zip(self.names, self.values.tolist(), strict=True))
        if not (math.isfinite(numbers["loss"]) and math.isfinite(numbers["grad_norm"])):
            raise _not_finite(self.batch, self.step, self.rate, numbers)
        return numbers


def send_numbers(totals: Mapping[str, Tensor], batch: Batch, step: int, rate: float) -> StepNumbers:
    """Send the numbers of a step to the CPU, all in one transfer, without waiting for them to arrive.

    Args:
        totals: scalars by name, with `loss` and `grad_norm`.
        batch, step, rate: of the step, for the error.
    """
    stacked, arrived = torch.stack([value.float() for value in totals.values()]), None
    values = stacked.to("cpu", non_blocking=True)
    if stacked.device.type == "cuda":
        event: Any = torch.cuda.Event
        arrived = event()
        arrived.record()
    return StepNumbers(tuple(totals), values, arrived, batch, step, rate)


def skip_unless_finite(optimizer: torch.optim.Optimizer, totals: Mapping[str, Tensor]) -> None:
    """Have an optimiser leave the weights alone from the first step on whose numbers are not finite.

    The GPU decides by itself, since whoever waits for its numbers keeps it waiting too. It is the flag by
    which PyTorch's `GradScaler` skips steps; here it is never taken back.
    """
    bad = ~(totals["loss"].isfinite() & totals["grad_norm"].isfinite())
    before = getattr(optimizer, "found_inf", None)
    flag = bad.float() if before is None else torch.maximum(before, bad.float())
    setattr(optimizer, "found_inf", flag)  # noqa: B010 (PyTorch's fused optimisers look for it, undeclared)


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


def _not_finite(batch: Batch, step: int, rate: float, numbers: Mapping[str, float]) -> NonFiniteError:
    """Make the error of a step whose loss or gradients are not finite; it names some samples."""
    found = batch.ids[batch.mask].tolist()
    more = f" and {len(found) - IDS_SHOWN:,} more" if len(found) > IDS_SHOWN else ""
    ids = ", ".join(map(str, found[:IDS_SHOWN])) + more
    return NonFiniteError(
        f"Step {step}: loss {numbers['loss']}, gradient norm {numbers['grad_norm']} at learning rate "
        f"{rate:.3g}. The step was not applied and no checkpoint holds it. Try a lower "
        f"learning rate, longer warm-up or float32. Training samples of the batch: {ids}."
    )
