"""The gradients of a batch, computed in micro-batches that fit into memory, and by several processes.

Every process holds the whole model (a replica), unless it is sharded, and computes a part of each batch. The
batch is the run's, whatever their number: the images of a micro-batch are divided as evenly as they can be,
so that one process may have an image more than another, or none. Gradients, losses and metrics are sums over
the whole batch, in which each image counts the same.

Every process and every pass that computes a part of a micro-batch draws mixup, and the images that skip a
branch, for all of it. So the update is the same as if one process computed all at once, but for rounding and
for dropout.

Sharding is PyTorch's FSDP2 (`fully_shard`), from outside of the model: it replaces the parameters by
`DTensor`s, of which each process has some rows, collects a block's before it is computed and adds up its
gradients after. So gradients, the optimiser's state and the average of the weights take a fraction of their
memory. Files hold whole tensors, whatever process had which part of them: they do not depend on how a run is
divided. The forward pass is a step that all processes take together. What is measured between two updates is
therefore measured by a whole model, which `assemble` collects in each process.
"""

import copy
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.models.config import Precision
from vitkit.models.image_model import BatchRows, ImageModel
from vitkit.text import first_line
from vitkit.training.config import Sharding, TrainingConfig
from vitkit.world import ALONE, World


def shard(model: ImageModel, world: World, sharding: Sharding, precision: Precision) -> None:
    """Divide the parameters of a model among processes, in place. All have the same weights before.

    Args:
        model: on the device that it is trained on, computed by calls of its blocks and dense layers.
        world: the processes.
        sharding: "fsdp"; or "hsdp", which divides among the processes of a machine, so that every machine
            has all of the model.
        precision: of the computation. In bfloat16 the dense layers of a block are collected in bfloat16, to
            which autocast would cast them, in half the bytes; gradients are added up in float32.

    Raises:
        VitkitError: the machines of "hsdp" have different numbers of processes.
    """
    # PyTorch takes half a second to import these.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    # PyTorch warns of blocks that return a view, such as axial ones, in case it is changed in place. No model
    # here does that.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    shape: tuple[int, ...] = (world.size,)
    if sharding == "hsdp":
        if world.size % world.on_machine:
            raise VitkitError(
                f"hsdp needs the same number of processes on every machine, found {world.on_machine} of "
                f"{world.size} on this one. Start as many on each, or choose --sharding fsdp."
            )
        shape = (world.size // world.on_machine, world.on_machine)
    names = ("machines", "processes")[-len(shape) :]
    mesh = init_device_mesh(next(model.parameters()).device.type, shape, mesh_dim_names=names)
    halved = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    # The layers, with the residual units of a hybrid's backbone.
    stages = getattr(getattr(model, "stem", None), "stages", ())
    for block in [*model.layers(), *(unit for stage in stages for unit in stage.children())]:
        dense: list[nn.Module] = [part for part in block.modules() if type(part) is nn.Linear]
        if precision == "bfloat16" and dense:
            # One group, collected at once. Norms and scales stay float32, with the rest of the model, as
            # under autocast: gradients equal the replicas' to the last bit (two processes, ViT-Ti/16). All of
            # it in bfloat16, as is usual, would round the sum of the branches at every block.
            fully_shard(dense, mesh=mesh, mp_policy=halved)
        else:
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for part in model.modules():
        if isinstance(part, FSDPModule):
            # Sums in place of PyTorch's means: each process has weighed its loss by all images of the batch.
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # else a product that gloo does not know


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process has a part of a tensor only."""
    return hasattr(tensor, "full_tensor")  # a `DTensor`, whose class takes long to import


def take_local(tensor: Any) -> Tensor:
    """Give this process's part of a tensor: all of it, unless it is sharded."""
    part: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return part


@torch.no_grad()
def collect(tensor: Any) -> Tensor:
    """Collect a tensor from all processes, which all call this at the same point."""
    everything: Tensor = tensor.full_tensor() if is_sharded(tensor) else tensor
    return everything


def divide_like(value: Tensor, owner: Any) -> Tensor:
    """Take this process's part of a whole tensor, where the tensor that it replaces is sharded.

    Tensors of another shape stay whole: the caller refuses them.
    """
    if not is_sharded(owner) or value.shape != owner.shape:
        return value
    from torch.distributed.tensor import DTensor

    own, mesh = owner.to_local(), owner.device_mesh
    # FSDP2 divides rows as `torch.chunk` does: the last processes may have fewer, or none.
    rows = -(-len(value) // mesh.size(mesh.ndim - 1))
    start = rows * mesh.get_local_rank(mesh.ndim - 1)
    part = value[start : start + rows].to(own.device, copy=True)
    whole = {"shape": value.shape, "stride": owner.stride()}
    return DTensor.from_local(part, mesh, owner.placements, run_check=False, **whole)


def skeleton_of(model: ImageModel) -> ImageModel:
    """Copy a model without the values of its tensors, for `assemble`."""
    tensors = [*model.parameters(), *model.buffers()]
    empty = {id(tensor): torch.empty_like(tensor, device="meta") for tensor in tensors}
    empty |= {id(own): nn.Parameter(empty[id(own)], own.requires_grad) for own in model.parameters()}
    return copy.deepcopy(model, empty)


def assemble(skeleton: ImageModel, weights: Mapping[str, Tensor], device: torch.device) -> ImageModel:
    """Build a whole model.

    Args:
        skeleton: from `skeleton_of`.
        weights: its parameters by name. Sharded ones are collected, which all processes do at the same point.
        device: of the model.
    """
    model = copy.deepcopy(skeleton)
    model.load_state_dict({name: collect(value) for name, value in weights.items()}, assign=True)
    model.compute_buffers()
    return model.to(device)


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


@contextmanager
def out_of_memory_explained(size: int, shape: torch.Size) -> Iterator[None]:
    """Say what to change when `size` images `(..., H, W)` do not fit into memory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        phrases = ("out of memory", "allocate memory", "not enough memory")
        if isinstance(error, RuntimeError) and not any(phrase in str(error) for phrase in phrases):
            raise
        raise VitkitError(
            f"Out of memory with {size} images of {shape[-2]}x{shape[-1]} at a time. Run the same command "
            f"with --micro-batch-size {max(1, size // 2)}: gradients are summed up to the same batch. "
            "Or choose a smaller model or image size."
        ) from error


BUCKET_BYTES = 32 * 2**20
"""Bytes of gradients that are summed over the processes at a time: large enough that the delay of a message
does not count, and small beside the gradients."""


class GradientSums:
    """Sums gradients over several processes, in buckets, while the backward pass computes the others.

    Buckets follow from the parameters alone, and every process begins to sum them in the same order, those of
    the last parameters first, whose gradients come first: a run that is continued adds in the same order.
    From then on the gradients of a bucket are parts of one tensor. A missing gradient counts as zeros.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], world: World) -> None:
        self.world = world
        self.buckets: list[list[nn.Parameter]] = []
        size = 0
        for parameter in reversed(parameters):
            if not self.buckets or size + parameter.nbytes > BUCKET_BYTES:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
        self.places = {p: place for place, bucket in enumerate(self.buckets) for p in bucket}
        self.missing = [0] * len(self.buckets)  # gradients that the backward pass will still compute
        self.waits: list[Callable[[], None]] = []  # for the buckets that are being summed
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._hear)  # type: ignore[no-untyped-call]
        self.hears = False

    def expect(self) -> None:
        """Begin to sum each bucket as soon as the next backward pass has computed its gradients."""
        self.missing, self.hears = [len(bucket) for bucket in self.buckets], True

    def _hear(self, parameter: Tensor) -> None:
        if self.hears:
            self.missing[self.places[cast("nn.Parameter", parameter)]] -= 1
            while len(self.waits) < len(self.buckets) and not self.missing[len(self.waits)]:
                self._begin()

    def _begin(self) -> None:
        """Begin to sum the next bucket."""
        bucket = self.buckets[len(self.waits)]
        flat = torch.cat(
            [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in bucket]
        )
        sizes = [parameter.numel() for parameter in bucket]
        for parameter, part in zip(bucket, torch.split(flat, sizes), strict=True):
            parameter.grad = part.view_as(parameter)
        self.waits.append(self.world.begin_adding(flat))

    def finish(self) -> None:
        """Sum the buckets that are left, and wait for all."""
        self.hears = False
        while len(self.waits) < len(self.buckets):
            self._begin()
        for wait in self.waits:
            wait()
        self.waits.clear()


class Replayed:
    """A model on a GPU whose training passes over a batch are recorded once, as CUDA graphs, and replayed.

    A replayed pass leaves its gradients in the memory of the one before, so that they cannot be added up: a
    step has one pass. Batches of another size are computed as usual.

    Args:
        model: called as a whole by its objective, without parts that draw random numbers.
        images: `(B, C, H, W)`, a batch of each type that it is given.

    Raises:
        VitkitError: the passes cannot be recorded.
    """

    def __init__(self, model: ImageModel, images: Sequence[Tensor]) -> None:
        self.model, kind = model, images[0].device.type
        # Under autocast the weights that it has cast already would be recorded, and not the casting.
        precision, casts = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self.passes: dict[tuple[torch.Size, torch.dtype], Any] = {}
        for batch in images:
            # Recorded through a module around the model, whose own `forward` stays as it is.
            whole: Any = nn.Sequential(model).train()
            try:
                with torch.autocast(kind, precision, enabled=casts, cache_enabled=False):
                    self.passes[batch.shape, batch.dtype] = torch.cuda.make_graphed_callables(whole, (batch,))
            except RuntimeError as error:
                raise VitkitError(
                    f"The passes of this model cannot be recorded as CUDA graphs: {first_line(error)}. Leave "
                    "--cuda-graphs out."
                ) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, images: Tensor) -> Tensor:
        recorded = self.passes.get((images.shape, images.dtype)) if self.model.training else None
        logits: Tensor = (recorded or self.model)(images)
        return logits


@dataclass
class Gradients:
    """Adds up the gradients of a batch, micro-batch by micro-batch."""

    model: nn.Module
    objective: nn.Module
    """It computes the loss of the model, on the same device."""
    optimizer: torch.optim.Optimizer
    """It clears the gradients of the step before."""
    autocast: Callable[[], AbstractContextManager[Any]]
    """It makes the context of the forward pass."""
    total_steps: int
    """Updates of the whole run, for the objective."""
    config: TrainingConfig
    """It has the run's seed, from which all randomness follows, and the images of a batch and of a
    micro-batch, for which random numbers are drawn together, of all processes together."""
    mixes: bool = False
    """Whether the objective mixes each image with the one before it."""
    world: World = ALONE
    """The processes that compute the gradients together."""

    def __post_init__(self) -> None:
        config, self.seed = self.config, self.config.seed
        self.is_sharded = any(map(is_sharded, self.model.parameters()))
        # Every pass through a sharded model is a step that all processes take together, whether they have
        # images for it or not.
        self.shares = divide(config.batch_size, config.micro_batch_size, self.world, self.is_sharded)
        # Images that this process computes at a time: fewer than its share of a micro-batch, once the share
        # did not fit into the memory of its GPU.
        self.size = max((len(share) for share in self.shares), default=0)
        self.device = next(self.model.parameters()).device
        stream: Any = torch.cuda.Stream
        self.copies = stream(self.device) if self.device.type == "cuda" else None
        # The gradients of a sharded model are added up by each pass that computes them.
        trained = {p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad}
        in_order = dict.fromkeys((*self.model.parameters(), *self.objective.parameters()))
        parameters = [p for p in in_order if p in trained and not is_sharded(p)]
        self.sums = GradientSums(parameters, self.world) if self.world.size > 1 else None
        self.fits = self.device.type == "cpu"  # whether a step of this size is known to fit into memory
        self.called: Any = self.model
        if config.cuda_graphs and self.device.type == "cuda":
            model, learned = cast("ImageModel", self.model), getattr(self.objective, "config", None)
            size = (self.size, model.config.in_channels, *model.config.image_size)
            images = [torch.zeros(size, dtype=torch.uint8, device=self.device)]
            if getattr(learned, "mixup", 0):  # of normalised pixels, in all batches but those of CutMix
                images = [images[0].float(), *(images if getattr(learned, "cutmix", 0) else ())]
            with self.autocast():
                self.called = Replayed(model, images)

    def compute(self, batch: Batch, step: int) -> dict[str, Tensor]:
        """Compute the gradients of a batch; where a GPU's memory is too small, in halves from this step on.

        Args:
            batch: the images and targets that this process reads of the batch, on the CPU.
            step: updates made before this one, from which all randomness in it follows.

        Returns:
            The loss and the objective's metrics: scalars, means over the readable images of the whole batch.

        Raises:
            VitkitError: a single image of a GPU, or a micro-batch elsewhere, does not fit into memory.
        """
        own = sum(int(batch.mask[at : at + len(share)].sum()) for at, share in self._placed())
        # At least 1, so that a batch of unreadable images alone has zero gradients and not 0 / 0.
        valid = max(int(self.world.total(own)[0]), 1)
        # An objective may have changed its buffers before the memory ran out.
        copies = [buffer.clone() for buffer in self.objective.buffers()]
        while True:
            with out_of_memory_explained(self.size, batch.images.shape):
                try:
                    totals = self._add_up(batch, step, valid)
                    self.fits = True
                    break
                except torch.OutOfMemoryError:  # of a GPU: a CPU's allocator raises another error
                    # The others would wait for passes and sums that come twice.
                    if self.size == 1 or self.is_sharded or (self.sums is not None and self.sums.waits):
                        raise
            # Out here, where no error holds the tensors any more that were alive when it was raised.
            self.optimizer.zero_grad()
            if self.sums is not None:
                self.sums.hears = False
            for buffer, value in zip(self.objective.buffers(), copies, strict=True):
                buffer.copy_(value)
            torch.cuda.empty_cache()
            self.size, self.fits = (self.size + 1) // 2, False
        return totals if self.world.size == 1 else self._add_processes(totals)

    def _placed(self) -> Iterator[tuple[int, Share]]:
        """Yield this process's shares, each after the place of its first image in the batch that it reads."""
        at = 0
        for share in self.shares:
            # The image before is read too, though another process trains on it.
            at += self.mixes and 0 < len(share) < share.total
            yield at, share
            at += len(share)

    def _add_up(self, batch: Batch, step: int, valid: int) -> dict[str, Tensor]:
        """Add up the gradients of this process's shares, at most `size` images at a time."""
        self.optimizer.zero_grad()
        totals: dict[str, Tensor] = {}
        # A process without images passes a masked one.
        passes = [
            (at, share, start)
            for at, share in self._placed()
            for start in range(0, max(len(share), self.is_sharded), max(self.size, 1))
        ]
        for number, (at, share, start) in enumerate(passes, 1):
            # All randomness of the micro-batch (dropout, mixup) follows from its number: a resumed run draws
            # the same, and a checkpoint stores no state of any random generator.
            self._seed(step_seed(self.seed, step, share.part))
            part, rows = self._take(batch, at, share, start, step)
            micro = send_batch(part, self.device, self.copies)
            self._set_rows(rows)
            with self.autocast():
                called = self.called if len(passes) == 1 else self.model
                loss, metrics = self.objective(called, micro, step, self.total_steps)
            # The loss is a mean over the micro-batch's readable images. Weighted by their fraction of the
            # batch, the gradients add up to the gradient of the mean over the whole batch.
            fraction = (micro.mask.sum().double() / valid).to(loss.dtype)
            # A sum that has begun cannot be taken back when memory runs out. A sharded model sums by itself,
            # and messages of two kinds would have no order.
            if self.sums is not None and number == len(passes) and self.fits and not self.is_sharded:
                self.sums.expect()
            (loss * fraction).backward()
            for name, value in {"loss": loss, **metrics}.items():
                before = totals.get(name, torch.zeros((), device=self.device))
                totals[name] = before + value.detach() * fraction
        self._set_rows(None)  # the next training images may be a whole batch
        return totals

    def _seed(self, seed: int) -> None:
        """Seed the generator of the processor, and those of all GPUs where one computes."""
        # `torch.manual_seed` keeps a stack trace for every other kind of device.
        if self.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _take(
        self, batch: Batch, at: int, share: Share, start: int, step: int
    ) -> tuple[Batch, BatchRows | None]:
        """Take at most `size` images of a share, from number `start` on; its first is at place `at`.

        Returns:
            The images, and which of a micro-batch they are; None: all of it, or none.
        """
        if not len(share):
            return batch.blank(), None
        stop, before, rows = min(start + self.size, len(share)), None, None
        if stop - start < share.total:
            if self.mixes:  # the first image with the last one, which the process has or has read
                before = at + (start - 1) % len(share) if len(share) == share.total else at + start - 1
            first = share.start + start
            seed = step_seed(self.seed, step, share.part, first)
            rows = BatchRows(first, share.start + stop, share.total, seed)
        return batch.slice(at + start, at + stop, before), rows

    def _set_rows(self, rows: BatchRows | None) -> None:
        if isinstance(self.model, ImageModel) and rows != self.model.batch_rows:
            self.model.take_rows(rows)

    def _add_processes(self, totals: dict[str, Tensor]) -> dict[str, Tensor]:
        """Sum gradients and totals over all processes."""
        assert self.sums is not None
        has_gradient = torch.tensor([p.grad is not None for p in self.sums.places], dtype=torch.float32)
        self.sums.finish()
        # A process without images has no totals, and process 0 always has images.
        names = self.world.tell(list(totals))
        zero = torch.zeros((), device=self.device)
        summed = torch.stack([totals.get(name, zero).float() for name in names])
        self.world.add(summed)
        # A parameter that has a gradient in no process is left without, as with one process.
        self.world.add(has_gradient)
        for parameter, count in zip(self.sums.places, has_gradient.tolist(), strict=True):
            if not count:
                parameter.grad = None
        return dict(zip(names, summed.unbind(), strict=True))


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


def step_seed(seed: int, step: int, part: int, image: int | None = None) -> int:
    """Mix the run's seed, the step and the numbers of the micro-batch and of its image into a seed.

    A hash, because sums would collide (seed 1 at step 2, seed 2 at step 1), and generators that are seeded
    with neighbouring numbers may begin alike.
    """
    numbers = (seed, step, part) if image is None else (seed, step, part, image)
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1  # 63 bits: the seeds that every generator accepts
