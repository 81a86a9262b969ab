"""Check whether a run fits into the memory of its machine, before anything is built."""

import resource

import torch

from vitkit.analysis.cost import parameters
from vitkit.errors import VitkitError
from vitkit.jobs.machine import available_memory
from vitkit.jobs.run_config import Run
from vitkit.models.zoo import ModelConfig
from vitkit.text import format_bytes, format_count
from vitkit.training.optim_config import OptimizerConfig


def require_memory(config: ModelConfig, run: Run, device: torch.device) -> None:
    """Refuse a model whose weights, gradients and optimiser exceed all memory, and such a batch of pixels.

    What fits barely is not refused: how much the activations need depends on more than the configuration.

    Raises:
        VitkitError: it does not fit; the message says how much is needed, and how much there is.
    """
    available = _free_memory(device)
    if available is None:
        return
    count = parameters(config)
    needed = count * bytes_per_weight(run.optimizer)
    if needed > available:
        raise VitkitError(
            f"{run.model} does not fit into memory: {format_count(count)} parameters need "
            f"{format_bytes(needed)} with gradients and optimiser, and {format_bytes(available)} are free. "
            "Choose a smaller model (vitkit models lists them), or a machine with more memory."
        )
    height, width = config.image_size
    needed = run.training.batch_size * (3 * height * width + 32)  # pixels, labels, numbers of the images
    if needed > available:
        raise VitkitError(
            f"A batch of {run.training.batch_size:,} images of {height}x{width} does not fit into memory: it "
            f"needs {format_bytes(needed)}, and {format_bytes(available)} are free. Choose a smaller "
            "--batch-size."
        )


def bytes_per_weight(optimizer: OptimizerConfig) -> int:
    """Count the bytes per weight in training: itself, its gradient, the optimiser's moments, its average."""
    first = 2 if optimizer.momentum_dtype == "bfloat16" else 4
    second = 0 if optimizer.optimizer == "sgd" else 4
    return 4 + 4 + first + second + (4 if optimizer.polyak is not None else 0)


def _free_memory(device: torch.device) -> int | None:
    """Estimate the free bytes of the GPU, or of this process; None where the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    known = [limit for limit in (available_memory(), None if space < 0 else space) if limit is not None]
    return min(known, default=None)
