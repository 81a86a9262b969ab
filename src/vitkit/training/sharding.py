"""Sharding: every process stores a part of each weight, and all of a block only while it is computed.

PyTorch's FSDP2 (`fully_shard`) does it from outside of the model: it replaces the parameters by `DTensor`s,
of which each process has some rows, collects a block's before it is computed and adds up its gradients after.
So gradients, the optimiser's state and the average of the weights take a fraction of their memory. Files hold
whole tensors, whatever process had which part of them: they do not depend on how a run is divided.

The forward pass is a step that all processes take together. What is measured between two updates is therefore
measured by a whole model, which `assemble` collects in each process.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.config.compute_config import Precision
from vitkit.models.image_model import ImageModel
from vitkit.training.config import Sharding
from vitkit.world import World


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
    return DTensor.from_local(
        part, mesh, owner.placements, run_check=False, shape=value.shape, stride=owner.stride()
    )


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
