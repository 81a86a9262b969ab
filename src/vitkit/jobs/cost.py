"""Estimate what a model needs: parameters, FLOPs, memory, and the compute of a training."""

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vitkit.analysis.cost import forward_flops, parameters, training_flops
from vitkit.analysis.memory import InferenceMemory, TrainingMemory, inference_memory, training_memory
from vitkit.errors import VitkitError
from vitkit.jobs.cost_options import CostOptions
from vitkit.models.channels_config import with_image_size
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.training.optim_config import OptimizerConfig
from vitkit.weights import LoadOptions, identify
from vitkit.weights.files.address import is_address
from vitkit.weights.files.source import ENDINGS

H100_FLOPS = 989e12
"""bfloat16 operations a second at the peak of an H100 SXM, without sparsity (NVIDIA's data sheet)."""


@dataclass(frozen=True)
class Cost:
    """The cost of one model."""

    model: str
    """Its name, or the path of its checkpoint."""
    image_size: tuple[int, int]
    """Height and width in pixels."""
    parameters: int
    """Number of parameters, with the head."""
    tokens: int | None
    """Number of tokens in the encoder; None for a ResNet."""
    forward_flops: int
    """FLOPs of the forward pass of one image, with the head."""
    training_flops: int
    """FLOPs of a training step for one image: three times the forward pass."""
    training_memory: dict[str, TrainingMemory]
    """Memory of training by precision."""
    prediction_memory: dict[str, InferenceMemory]
    pretraining_flops: float | None = None
    """FLOPs for all images in all epochs; None where no training is estimated."""
    h100_days: float | None = None
    """Days on one H100, estimated from the assumed utilisation."""


def count_costs(options: CostOptions) -> list[Cost]:
    """Count what each of the models needs.

    Raises:
        VitkitError: no model is named, or one is neither a name nor a checkpoint, or sizes do not fit.
    """
    if not options.models:
        raise VitkitError("Name a model: vitkit cost ViT-B/16. Names are listed by vitkit models.")
    # The decay of the average does not matter here, only that there is one.
    optimizer = OptimizerConfig(optimizer=options.optimizer, polyak=0.9999 if options.average else None)
    return [
        cost_of(
            name,
            configuration(name, replace(options.load_options, num_classes=options.num_classes)),
            options.batch_size,
            optimizer,
            options.images_seen,
            options.utilization,
        )
        for name in options.models
    ]


def record(cost: Cost) -> dict[str, Any]:
    """Give what one model needs as plain data, as `vitkit cost --json` prints it."""
    return {name: value for name, value in asdict(cost).items() if value is not None or name == "tokens"}


def configuration(name: str, options: LoadOptions) -> ModelConfig:
    """Find the configuration of a name of the zoo's grammar or of a checkpoint.

    Args:
        name: which model.
        options: image size and classes; left out, 224 pixels a side and 1000, or the checkpoint's; and the
            heads of a checkpoint whose file does not say them.

    Raises:
        VitkitError: it is neither of them, or sizes that do not fit.
    """
    size, classes = options.size, options.num_classes
    if not is_checkpoint(name):
        if options.num_heads is not None:
            raise VitkitError(
                f"--num-heads is for a checkpoint that does not say it, and {name} is a name: other heads "
                "are named as ViT-WIDTHxDEPTHxHEADS/PATCH."
            )
        return model_config(name, 1000 if classes is None else classes, size or 224)
    config = identify(name, options).config
    config = with_image_size(config, size or config.image_size)
    return replace(config, num_classes=config.num_classes if classes is None else classes)


def is_checkpoint(name: str) -> bool:
    """Whether a path or an address is meant, there or not; else it is a name of the zoo."""
    path = Path(name)
    if path.exists() or is_address(name) or name.endswith(ENDINGS):
        return True
    return "/" in name and not re.match(r"[^/]*(vit|bit|resnet)", name, re.IGNORECASE)


def cost_of(
    name: str,
    config: ModelConfig,
    batch_size: int,
    optimizer: OptimizerConfig,
    images: float | None = None,
    utilization: float = 0.4,
) -> Cost:
    """Count what one model needs.

    Args:
        name: of the model, as it is shown.
        config: its configuration.
        batch_size: images at a time.
        optimizer: decides what is stored for each weight.
        images: seen in training, repetitions counted; left out, no pre-training is costed.
        utilization: fraction of an H100's peak that training reaches.
    """
    flops = training_flops(config, head=True) * images if images is not None else None
    return Cost(
        model=name,
        image_size=config.image_size,
        parameters=parameters(config),
        tokens=config.num_tokens,
        forward_flops=forward_flops(config, head=True),
        training_flops=training_flops(config, head=True),
        training_memory={
            "float32": training_memory(config, batch_size, optimizer=optimizer),
            "bfloat16": training_memory(config, batch_size, optimizer=optimizer, precision="bfloat16"),
        },
        prediction_memory={
            "float32": inference_memory(config, batch_size),
            "bfloat16": inference_memory(config, batch_size, precision="bfloat16"),
        },
        pretraining_flops=flops,
        h100_days=None if flops is None else flops / (H100_FLOPS * utilization) / 86400,
    )
