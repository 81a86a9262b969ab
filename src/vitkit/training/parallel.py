"""The division of a batch among the processes that train one model together.

Every process holds the whole model (a replica) and computes a part of each batch. The batch is the run's,
whatever their number: the images of a micro-batch are divided as evenly as they can be, so that one process
may have an image more than another, or none. Gradients, losses and metrics are sums over the whole batch, in
which each image counts the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.world import World


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


def divide(
    batch_size: int, micro_batch_size: int | None, world: World, with_empty: bool = False
) -> list[Share]:
    """Divide a batch among the processes, micro-batch by micro-batch; returns the shares of this one.

    The first processes have an image more where the number cannot be divided, and the last ones may have
    none.

    Args:
        batch_size: images of a batch, of all processes together.
        micro_batch_size: images of a micro-batch, of all processes together; None: the whole batch.
        world: the processes.
        with_empty: whether micro-batches of which this process has no image are listed too.
    """
    shares = []
    for part, offset in enumerate(range(0, batch_size, micro_batch_size or batch_size)):
        total = min(micro_batch_size or batch_size, batch_size - offset)
        each, extra = divmod(total, world.size)
        start = world.rank * each + min(world.rank, extra)
        stop = start + each + (world.rank < extra)
        if stop > start or with_empty:
            shares.append(Share(part, start, stop, total, offset))
    return shares


def places_of(shares: Sequence[Share], mixes: bool) -> NDArray[np.int64]:
    """List the places of a batch that a process reads, for `vitkit.data.stream.loader.TrainLoader`.

    Args:
        shares: the process's parts of the micro-batches.
        mixes: whether each image is mixed with the one before it. Then the image before a share's first one
            is read too, ahead of the share, though another process trains on it.
    """
    places = list[int]()
    for share in shares:
        if mixes and 0 < len(share) < share.total:
            places.append(share.offset + (share.start - 1) % share.total)
        places += range(share.offset + share.start, share.offset + share.stop)
    return np.array(places, dtype=np.int64)
