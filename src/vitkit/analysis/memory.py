"""What a model costs in memory, from its configuration alone: of a training step, and of prediction.

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

from vitkit.analysis.cost import parameters
from vitkit.analysis.memory_parts import FLOAT, Precision, model_parts, pixels
from vitkit.models.zoo import ModelConfig
from vitkit.training.optim_config import OptimizerConfig


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
    """Of all weights, at the end of the backward pass."""
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
    """Memory of one update of all weights by classification.

    Args:
        config: of any model of the zoo's grammar.
        batch_size: images at a time: the micro-batch, where there is one.
        optimizer: decides what is stored for each weight; left out, AdamW without averaging.
        precision: of the arithmetic; weights, gradients and optimiser are float32 in either.
        accumulate: gradients of earlier micro-batches are there while the forward pass runs.
    """
    optimizer = optimizer or OptimizerConfig()
    count = parameters(config)
    weights = FLOAT * count
    state = count * _state_bytes(optimizer)
    average = weights if optimizer.polyak is not None else 0
    images = batch_size * pixels(config)
    parts = list(model_parts(config, precision))
    kept = [batch_size * part.kept + part.once for part in parts]
    activations, gradients, peak = sum(kept), FLOAT * sum(part.parameters for part in parts), 0
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
    """Memory of predicting one batch, without gradients.

    Args:
        config, batch_size, precision: as for `training_memory`.
    """
    parts = list(model_parts(config, precision))
    weights, images = FLOAT * parameters(config), batch_size * pixels(config)
    # Autocast keeps the weights it has rounded until the batch is done.
    rounded = sum(part.once for part in parts if not part.kernel) if precision == "bfloat16" else 0
    live = max(batch_size * part.live + 2 * part.kernel for part in parts)
    activations = rounded + live
    return InferenceMemory(weights, images, activations, weights + images + activations)


def _state_bytes(optimizer: OptimizerConfig) -> int:
    """For each weight: AdamW two moments, SGD one; the first may be bfloat16."""
    first = 2 if optimizer.momentum_dtype == "bfloat16" else FLOAT
    return first if optimizer.optimizer == "sgd" else first + FLOAT
