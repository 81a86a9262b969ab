"""Several processes that train one model: what each of them computes, and what all of them agree on.

Every process holds the whole model (a replica) and computes a part of each batch. The batch is the run's,
whatever their number: the images of a micro-batch are divided as evenly as they can be, so that one process
may have an image more than another, or none. Gradients, losses and metrics are sums over the whole batch, in
which each image counts the same. Process 0 decides what all must do alike, and it alone writes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

BUCKET_BYTES = 32 * 2**20
"""Bytes of gradients that are summed over the processes at a time: enough that the time of a message does not
count, and little beside the gradients, of which it is a copy."""

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """The processes that train together, of which this is number `rank`."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def add(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their sums over all processes, in place.

        They are added in buckets that follow from their shapes alone, so that a run that is continued adds in
        the same order.
        """
        if self.size == 1:
            return
        bucket, size = list[Tensor](), 0
        for tensor in tensors:
            if bucket and size + tensor.nbytes > BUCKET_BYTES:
                _add_bucket(bucket)
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        if bucket:
            _add_bucket(bucket)

    def total(self, *numbers: float) -> list[float]:
        """Sum numbers over all processes, in double precision."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(values)
        return cast("list[float]", values.tolist())

    def tell(self, value: T) -> T:
        """Give all processes what process 0 has: plain data, such as JSON holds."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.writes else b""
        length = torch.tensor([len(text)])
        dist.broadcast(length, 0)
        content = torch.zeros(int(length), dtype=torch.uint8)
        if self.writes:
            content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
        dist.broadcast(content, 0)
        return cast("T", json.loads(content.numpy().tobytes()))

    def gather(self, value: T) -> list[T]:
        """Give all processes what each of them has, in the order of ranks: plain data, such as JSON holds."""
        if self.size == 1:
            return [value]
        text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(text)]))
        longest = max(int(length) for length in lengths)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(text)] = text
        texts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
        dist.all_gather(texts, padded)
        return [
            json.loads(found[: int(length)].numpy().tobytes())
            for found, length in zip(texts, lengths, strict=True)
        ]


ALONE = World()
"""A process that trains by itself."""


def _add_bucket(tensors: Sequence[Tensor]) -> None:
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    at = 0
    for tensor in tensors:
        tensor.copy_(flat[at : at + tensor.numel()].view_as(tensor))
        at += tensor.numel()


@dataclass(frozen=True)
class Share:
    """The images of a micro-batch that one process computes."""

    part: int
    """The number of the micro-batch in its batch."""
    start: int
    stop: int
    total: int
    """Images of the micro-batch, of which these are `start` to `stop - 1`."""
    offset: int
    """The place of the micro-batch's first image in the batch."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def is_whole(self) -> bool:
        """Whether the process computes the whole micro-batch."""
        return len(self) == self.total


def divide(batch_size: int, micro_batch_size: int | None, world: World) -> list[Share]:
    """Divide a batch among the processes, micro-batch by micro-batch; returns the shares of this one.

    The first processes have an image more where the number cannot be divided, and the last ones may have
    none.

    Args:
        batch_size: images of a batch, of all processes together.
        micro_batch_size: images of a micro-batch, of all processes together; None: the whole batch.
        world: the processes.
    """
    shares = []
    for part, offset in enumerate(range(0, batch_size, micro_batch_size or batch_size)):
        total = min(micro_batch_size or batch_size, batch_size - offset)
        each, more = divmod(total, world.size)
        start = world.rank * each + min(world.rank, more)
        stop = start + each + (world.rank < more)
        if stop > start:
            shares.append(Share(part, start, stop, total, offset))
    return shares


def places_of(shares: Sequence[Share], mixes: bool) -> NDArray[np.int64]:
    """List the places of a batch that a process reads, for `vitkit.data.stream.loader.TrainLoader`.

    Args:
        shares: of the process.
        mixes: whether each image is mixed with the one before it. Then that of a share's first image is read
            too, though another process trains on it, and comes before the others.
    """
    places = list[int]()
    for share in shares:
        if mixes and not share.is_whole:
            places.append(share.offset + (share.start - 1) % share.total)
        places += range(share.offset + share.start, share.offset + share.stop)
    return np.array(places, dtype=np.int64)
