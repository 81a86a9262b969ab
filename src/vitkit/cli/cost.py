"""`vitkit cost`: what models need, and the paper's Table 6 beside our count."""

import difflib
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_models
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import CostOptions
from vitkit.models.zoo import list_models, model_config
from vitkit.runs.folder import is_checkpoint
from vitkit.text import format_bytes, format_count, format_size

if TYPE_CHECKING:
    from vitkit.jobs.cost import Cost, Table6Row


@dataclass(frozen=True)
class Command(CostOptions):
    """Say what models need: parameters, FLOPs, memory of a batch, compute of a whole training."""

    table6: Annotated[bool, tyro.conf.arg(name="table6")] = False
    """print the pre-training compute of the paper's Table 6 beside ours."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


HELP = HelpPage(
    "MODEL... [OPTIONS]",
    (
        "--batch-size",
        "--image-size",
        "--num-classes",
        "--epochs",
        "--images",
        "--optimizer",
        "--average",
        "--utilization",
        "--table6",
        "--json",
    ),
    (
        "vitkit cost ViT-B/16 ViT-L/16",
        "vitkit cost ViT-S/16 --epochs 300 --images 1281167",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line and print what the models need, or Table 6."""
    command: Command = parse(Command, arguments, "cost", HELP)
    if command.table6:
        with importing():
            from vitkit.jobs.cost import table6

        rows = table6()
        if command.json_output:
            console.print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        else:
            print_table6(rows)
        return
    require_models(command.models)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.cost import count_costs, record

    for name in command.models:
        download(name)
    costs = count_costs(command)
    if command.json_output:
        console.print_json([record(cost) for cost in costs])
    else:
        print_costs(costs, command)


def print_costs(costs: "list[Cost]", options: CostOptions) -> None:
    """Print what models need: one in detail, several as a table.

    Args:
        costs: of each model.
        options: what was asked for.
    """
    from vitkit.jobs.cost import H100_FLOPS

    if len(costs) == 1:
        _print_one(costs[0], options)
    else:
        _print_many(costs, options.batch_size)
    console.out.print(
        "\nA multiply-accumulate is 2 FLOPs; those of convolutions with the zeros of padding are left "
        "out (other counters have them, 3 to 4 % more for a ResNet). Memory is an estimate, "
        "measured as a processor computes, in the way that a run on this machine would choose: what PyTorch "
        "and its libraries take comes on top, and it was never compared with a GPU."
    )
    for sentence in filter(None, map(_pixels_left_out, costs)):
        console.out.print(sentence, markup=False, soft_wrap=True)
    if options.images_seen is not None:
        console.out.print(
            f"Days are an estimate: at {options.utilization:.0%} (assumed) of an H100's "
            f"{H100_FLOPS / 1e12:.0f} TFLOP/s."
        )
    following = "vitkit train --model NAME --data PATH"
    if all(is_checkpoint(name) for name in options.models):
        following = f"vitkit card {shlex.quote(options.models[0])}"
    console.out.print(f"\nNext: {following}", markup=False, soft_wrap=True)


def _pixels_left_out(cost: "Cost") -> str | None:
    """Say of a model by name that its patches do not fill the image, and which one may have been meant."""
    if is_checkpoint(cost.model):
        return None
    config = model_config(cost.model, image_size=cost.image_size)
    if not config.cut_off:
        return None
    of_size = list_models(f"{cost.model.split('/')[0]}/*")
    near = [name for name in difflib.get_close_matches(cost.model, of_size, n=1) if name != cost.model]
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{cost.model}: {config.cut_off}.{meant}"


def print_table6(rows: "list[Table6Row]") -> None:
    """Print the pre-training compute of the paper's Table 6 beside ours."""
    table = Table("model", "epochs", "paper, exaFLOPs", "ours", "ratio", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for row in rows:
        table.add_row(row.model, str(row.epochs), f"{row.paper:,}", f"{row.ours:,.1f}", f"{row.ratio:.3f}")
    console.out.print(table)
    console.out.print(
        "\nPre-training on 303 million images at 224 pixels: 6 FLOPs for each multiply-accumulate of the "
        "forward pass, without the head and the zeros of padding. The paper's 7 epochs of R50+ViT-L/16 are "
        "more than half of its own 14."
    )


def _numbers(cost: "Cost") -> list[tuple[str, str]]:
    """Put into words what does not depend on batch and precision."""
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
    """Write a number with three significant figures: 0.0123, 4.56, 1,234."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _print_one(cost: "Cost", options: CostOptions) -> None:
    table = Table(f"{cost.model} at {format_size(cost.image_size)}", "", box=None)
    table.columns[1].justify = "right"
    for row in _numbers(cost):
        table.add_row(*row)
    console.out.print(table)
    memory = Table(f"memory of {options.batch_size:,} images at a time", "float32", "bfloat16", box=None)
    for column in memory.columns[1:]:
        column.justify = "right"
    state = "AdamW" if options.optimizer == "adamw" else "SGD"
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


def _print_many(costs: "list[Cost]", batch_size: int) -> None:
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
