"""The memory that a model needs, from its configuration alone: in a training step, and in prediction.

A model is a list of parts in the order they are computed. Each says what autograd keeps of it until the
backward pass has come by, and what lives for a moment. Walking back through the list, activations go as
gradients come; the largest sum on the way is the peak.

For float32 this was compared with what PyTorch allocates on a CPU (`tests/analysis/test_memory.py`). For
bfloat16 it follows the rules of CUDA's autocast, under which norms read and write float32; of that, what a
ViT saves was compared on a CPU, and nothing with a GPU. Not counted: what PyTorch itself needs (about half a
GB on a GPU), the allocator's gaps, and the workspaces of convolution libraries, which may be a few times as
large as a kernel.
"""

from dataclasses import dataclass
from typing import Literal

from vitkit.analysis.cost import part_costs
from vitkit.models.cost import FLOAT
from vitkit.models.image_config import ImageConfig
from vitkit.models.zoo import ModelConfig
from vitkit.training.optim_config import OptimizerConfig

Precision = Literal["float32", "bfloat16"]
PRODUCT_BYTES: dict[Precision, int] = {"float32": FLOAT, "bfloat16": 2}
"""Bytes of a number that goes into matrix products."""


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes that a training step needs, by what they are for."""

    weights: int
    optimizer_state: int
    average: int
    """The running average of the weights, if there is one."""
    images: int
    """The batch, as uint8 pixels."""
    gradients: int
    """The gradients of all weights, at the end of the backward pass."""
    activations: int
    """Kept for the backward pass, at the end of the forward pass."""
    temporaries: int
    """Gradients of activations, at the part where they are largest."""
    peak: int
    """The most that is alive at one time: less than the sum, for gradients come as activations go."""


@dataclass(frozen=True)
class InferenceMemory:
    """Bytes that prediction needs, by what they are for."""

    weights: int
    images: int
    activations: int
    """Alive at the part where they are largest."""
    peak: int


def training_memory(
    config: ModelConfig,
    batch_size: int,
    *,
    optimizer: OptimizerConfig | None = None,
    precision: Precision = "float32",
    accumulate: bool = False,
) -> TrainingMemory:
    """Estimate the memory of one update of all weights by classification, in bytes.

    Args:
        config: of any model of the zoo's grammar.
        batch_size: images at a time: the micro-batch, where there is one.
        optimizer: decides what is stored for each weight; left out, AdamW without averaging.
        precision: that of matrix products; weights, gradients and optimiser are float32 in either.
        accumulate: whether gradients of earlier micro-batches are there while the forward pass runs.
    """
    optimizer = optimizer or OptimizerConfig()
    parts = list(part_costs(config, PRODUCT_BYTES[precision]))
    count = sum(part.parameters for part in parts)
    weights = gradients = FLOAT * count
    state = count * _state_bytes(optimizer)
    average = weights if optimizer.polyak is not None else 0
    images = batch_size * _pixels(config)
    kept = [batch_size * part.kept + part.once for part in parts]
    activations, peak = sum(kept), 0
    # Walk back through the parts. Behind are the gradients of weights that are made already, ahead the
    # activations that the backward pass has not come to; each part frees its own as it is left.
    behind = gradients if accumulate else 0
    ahead = activations
    for part, own in zip(reversed(parts), reversed(kept), strict=True):
        behind += 0 if accumulate else FLOAT * part.parameters
        peak = max(peak, ahead + behind + batch_size * part.passing + 2 * part.kernel)
        ahead -= own
    if optimizer.optimizer == "sgd" and optimizer.momentum_dtype == "bfloat16":
        peak = max(peak, gradients + weights)  # every momentum is float32 for a moment
    return TrainingMemory(
        weights=weights,
        optimizer_state=state,
        average=average,
        images=images,
        gradients=gradients,
        activations=activations,
        temporaries=max(batch_size * part.passing + 2 * part.kernel for part in parts),
        peak=weights + state + average + images + peak,
    )


def inference_memory(
    config: ModelConfig, batch_size: int, *, precision: Precision = "float32"
) -> InferenceMemory:
    """Estimate the memory of predicting one batch, without gradients, in bytes.

    Args:
        config, batch_size, precision: as for `training_memory`.
    """
    parts = list(part_costs(config, PRODUCT_BYTES[precision]))
    weights, images = FLOAT * sum(part.parameters for part in parts), batch_size * _pixels(config)
    # Autocast keeps the weights it has rounded until the batch is done.
    rounded = sum(part.once for part in parts if not part.kernel) if precision == "bfloat16" else 0
    live = max(batch_size * part.live + 2 * part.kernel for part in parts)
    activations = rounded + live
    return InferenceMemory(weights, images, activations, weights + images + activations)


def _pixels(config: ImageConfig) -> int:
    """Count the numbers of one image."""
    return config.in_channels * config.image_size[0] * config.image_size[1]


def _state_bytes(optimizer: OptimizerConfig) -> int:
    """Give the bytes of state for each weight: AdamW's two moments, SGD's one; the first may be bfloat16."""
    first = 2 if optimizer.momentum_dtype == "bfloat16" else FLOAT
    return first if optimizer.optimizer == "sgd" else first + FLOAT
