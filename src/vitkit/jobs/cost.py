"""`vitkit cost`: what a model needs before a GPU is touched, and the paper's Table 6 beside our count."""

import re
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.table import Table

from vitkit.analysis.cost import forward_flops, parameters, table6, training_flops
from vitkit.analysis.memory import InferenceMemory, TrainingMemory, inference_memory, training_memory
from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.cli.options import parse
from vitkit.errors import VitkitError
from vitkit.models.image_config import format_size
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.text import format_bytes, format_count
from vitkit.training.optim import OptimizerConfig
from vitkit.weights import identify
from vitkit.weights.files.address import is_address
from vitkit.weights.files.source import ENDINGS

H100_FLOPS = 989e12
"""bfloat16 operations a second at the peak of an H100 SXM, without sparsity (NVIDIA's data sheet)."""


@dataclass(frozen=True)
class Cost:
    """What one model needs."""

    model: str
    image_size: tuple[int, int]
    parameters: int
    tokens: int | None
    """None: a ResNet has none."""
    forward_flops: int
    """Of one image, the head counted."""
    training_flops: int
    """Of one image: three times the forward pass."""
    training_memory: dict[str, TrainingMemory]
    """By precision."""
    prediction_memory: dict[str, InferenceMemory]
    pretraining_flops: float | None = None
    """Of all images in all epochs."""
    h100_days: float | None = None
    """An estimate, from the utilisation that is assumed."""


def configuration(
    name: str,
    image_size: tuple[int, int] | None = None,
    num_classes: int | None = None,
    num_heads: int | None = None,
) -> ModelConfig:
    """Of a name of the zoo's grammar (1000 classes at 224 pixels if not said), or of a checkpoint.

    Raises:
        VitkitError: neither; or sizes that do not fit.
    """
    if not is_checkpoint(name):
        if num_heads is not None:
            raise VitkitError(
                f"--num-heads is for a checkpoint that does not say it, and {name} is a name: other heads "
                "are named as ViT-WIDTHxDEPTHxHEADS/PATCH."
            )
        return model_config(name, 1000 if num_classes is None else num_classes, image_size or 224)
    config = identify(name, image_size, num_heads).config
    size, classes = (
        image_size or config.image_size,
        config.num_classes if num_classes is None else num_classes,
    )
    return replace(config, image_size=size, num_classes=classes)


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
    """Everything at once.

    Args:
        name: shown.
        config: of the model.
        batch_size: images at a time.
        optimizer: decides what is stored for each weight.
        images: seen in training, repetitions counted; left out, no pre-training is costed.
        utilization: share of an H100's peak that training reaches.
    """
    flops = training_flops(config, head=True) * images if images is not None else None
    return Cost(
        model=name,
        image_size=config.image_size,
        parameters=parameters(config),
        tokens=config.num_tokens if isinstance(config, ViTConfig) else None,
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


def _record(cost: Cost) -> dict[str, Any]:
    return {name: value for name, value in asdict(cost).items() if value is not None or name == "tokens"}


def _numbers(cost: Cost) -> list[tuple[str, str]]:
    """What does not depend on batch and precision, in words."""
    rows = [
        ("parameters", f"{cost.parameters:,}"),
        ("tokens", "-" if cost.tokens is None else str(cost.tokens)),
        ("FLOPs per image, forward", format_count(cost.forward_flops)),
        ("FLOPs per image, training", format_count(cost.training_flops)),
    ]
    if cost.pretraining_flops is not None and cost.h100_days is not None:
        rows += [
            ("exaFLOPs of training", _figures(cost.pretraining_flops / 1e18)),
            ("days on one H100", _figures(cost.h100_days)),
        ]
    return rows


def _figures(value: float) -> str:
    """Three of them: 0.0123, 4.56, 1,234."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _print_one(cost: Cost, batch_size: int, optimizer: OptimizerConfig) -> None:
    table = Table(f"{cost.model} at {format_size(cost.image_size)}", "", box=None)
    table.columns[1].justify = "right"
    for row in _numbers(cost):
        table.add_row(*row)
    console.out.print(table)
    memory = Table(f"memory of {batch_size:,} images at a time", "float32", "bfloat16", box=None)
    for column in memory.columns[1:]:
        column.justify = "right"
    state = "AdamW" if optimizer.optimizer == "adamw" else "SGD"
    parts = {
        "weights": "weights",
        "optimizer_state": f"state of {state}",
        "average": "average of the weights",
        "images": "images",
        "gradients": "gradients",
        "activations": "activations kept for the backward pass",
        "temporaries": "gradients of activations",
        "peak": "training, most at one time",
    }
    columns = [asdict(part) for part in cost.training_memory.values()]
    for key, words in parts.items():
        if any(column[key] for column in columns):
            memory.add_row(words, *(format_bytes(column[key]) for column in columns))
    memory.add_row(
        "prediction, most at one time", *(format_bytes(part.peak) for part in cost.prediction_memory.values())
    )
    console.out.print()
    console.out.print(memory)


def _why_not_less(costs: list[Cost]) -> str:
    """A sentence about models that need more memory in bfloat16; empty without such."""
    more = [
        cost.model
        for cost in costs
        if cost.training_memory["bfloat16"].peak > cost.training_memory["float32"].peak
    ]
    if not more:
        return ""
    return (
        f"{', '.join(more)}: more in bfloat16, because norms stay in float32 and each convolution keeps a "
        "bfloat16 copy of what it reads beside that."
    )


def _print_many(costs: list[Cost], batch_size: int) -> None:
    headers = ["model", "parameters", "tokens", "forward", "training"]
    if costs[0].pretraining_flops is not None:
        headers += ["exaFLOPs", "H100 days"]
    table = Table(*headers, "memory", "in bfloat16", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for cost in costs:
        peaks = (format_bytes(memory.peak) for memory in cost.training_memory.values())
        table.add_row(cost.model, *(value for _, value in _numbers(cost)), *peaks)
    console.out.print(table)
    console.out.print(
        "\nforward and training: FLOPs for each image; memory: the most of a training "
        f"step of {batch_size:,} images."
    )


def _print_table6(as_json: bool) -> None:
    if as_json:
        console.print_json([{**asdict(row), "ratio": row.ratio} for row in table6()])
        return
    table = Table("model", "epochs", "paper, exaFLOPs", "ours", "ratio", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in table6():
        table.add_row(row.model, str(row.epochs), f"{row.paper:,}", f"{row.ours:,.1f}", f"{row.ratio:.3f}")
    console.out.print(table)
    console.out.print(
        "\nPre-training on 303 million images at 224 pixels: 6 FLOPs for each multiply-accumulate of the "
        "forward pass, without the head and the zeros of padding. The paper's 7 epochs of R50+ViT-L/16 are "
        "more than half of its own 14."
    )


def main(arguments: list[str]) -> None:
    def command(
        models: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
        image_size: Annotated[
            tuple[int, int] | None, tyro.conf.arg(help_behavior_hint="(default: 224, or the checkpoint's)")
        ] = None,
        batch_size: int = 128,
        num_classes: int | None = None,
        num_heads: int | None = None,
        optimizer: Literal["adamw", "sgd"] = "adamw",
        average: bool = False,
        epochs: float | None = None,
        images: int | None = None,
        utilization: float = 0.4,
        table6: Annotated[bool, tyro.conf.arg(name="table6")] = False,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Say what models need: parameters, FLOPs, memory of a batch, compute of a whole training.

        Args:
            models: names (ViT-B/16, R50+ViT-L/16, BiT-R152x4, ViT-96x6x3/4), run folders or checkpoints.
            image_size: height and width, or one number for both.
            batch_size: images at a time.
            num_classes: of the head; left out, 1000 or the checkpoint's.
            num_heads: of a checkpoint's attention, where the file does not say it.
            optimizer: adamw stores two numbers for each weight, sgd one.
            average: a running average of the weights is stored too.
            epochs: of a training on so many --images.
            images: in the training set.
            utilization: share of an H100's peak that training reaches: an assumption.
            table6: print the pre-training compute of the paper's Table 6 beside ours.
            json_output: print everything as JSON.
        """
        if table6:
            _print_table6(json_output)
            return
        if not models:
            raise VitkitError("Name a model: vitkit cost ViT-B/16. Names are listed by vitkit models.")
        if batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {batch_size}.")
        if (epochs is None) != (images is None):
            raise VitkitError("A training is costed by --epochs and --images together; one is missing.")
        if epochs is not None and images is not None and min(epochs, images) <= 0:
            raise VitkitError(f"epochs and images are above 0, found {epochs:g} and {images}.")
        if not 0 < utilization <= 1:
            raise VitkitError(f"utilization is a share above 0 and at most 1, found {utilization}.")
        seen = epochs * images if epochs is not None and images is not None else None
        stored = OptimizerConfig(optimizer=optimizer, polyak=0.9999 if average else None)
        for name in models:
            download(name)
        costs = [
            cost_of(
                name,
                configuration(name, image_size, num_classes, num_heads),
                batch_size,
                stored,
                seen,
                utilization,
            )
            for name in models
        ]
        if json_output:
            console.print_json([_record(cost) for cost in costs])
            return
        if len(costs) == 1:
            _print_one(costs[0], batch_size, stored)
        else:
            _print_many(costs, batch_size)
        more = _why_not_less(costs)
        if more:
            console.out.print(f"\n{more}", markup=False)
        console.out.print(
            "\nA multiply-accumulate is 2 FLOPs; those of convolutions with the zeros of padding are left "
            "out (other counters have them, 3 to 4 % more for a ResNet). Memory is an estimate: what PyTorch "
            "and its libraries take comes on top, and for bfloat16 it was never compared with a GPU."
        )
        if seen is not None:
            console.out.print(
                f"Days are an estimate: at {utilization:.0%} (assumed) of an H100's "
                f"{H100_FLOPS / 1e12:.0f} TFLOP/s."
            )
        following = "vitkit train --model NAME --data PATH"
        if all(is_checkpoint(name) for name in models):
            following = f"vitkit card {shlex.quote(models[0])}"
        console.out.print(f"\nNext: {following}", markup=False, soft_wrap=True)

    parse(command, arguments, "cost")
