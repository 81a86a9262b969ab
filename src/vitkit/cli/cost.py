"""`vitkit cost`: what models need, and the paper's Table 6 beside our count."""

import difflib
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from vitkit.cli import console
from vitkit.cli.checks import require_models
from vitkit.cli.options import Verb, with_defaults
from vitkit.cli.verb_options import JSON, describe
from vitkit.models.zoo import list_models, model_config
from vitkit.runs.folder import is_checkpoint
from vitkit.text import format_bytes, format_count, format_size

if TYPE_CHECKING:
    from vitkit.jobs.cost import Cost, Table6Row

TABLE6 = Verb("cost", "vitkit.jobs.cost", "table6")


@dataclass(kw_only=True)
class OtherForms:
    """The options that are none of the estimate's."""

    table6: bool = False
    """print the pre-training compute of the paper's Table 6 beside ours."""


VERB = Verb("cost", "vitkit.jobs.cost", "count_costs", JSON, *describe(OtherForms))


def main(arguments: list[str]) -> None:
    """Parse the command line and print what the models need, or Table 6."""
    given = VERB.parse(arguments)
    if given.get("table6"):
        rows = TABLE6.call({})
        if given.get("json"):
            console.print_json([{**asdict(row), "ratio": row.ratio} for row in rows])
        else:
            _print_table6(rows)
        return
    require_models(given["models"])
    costs = VERB.call(given)
    from vitkit.jobs.cost import record

    if given.get("json"):
        console.print_json([record(cost) for cost in costs])
    else:
        _print_costs(costs, with_defaults(given, VERB.options))


def _print_costs(costs: "list[Cost]", options: Mapping[str, Any]) -> None:
    """Print what models need: a single model in detail, several as a table."""
    from vitkit.jobs.cost import H100_FLOPS

    if len(costs) == 1:
        _print_model(costs[0], options)
    else:
        _print_many(costs, options["batch_size"])
    console.out.print(
        "\nA multiply-accumulate is 2 FLOPs; products with the zeros of padding are not counted (other "
        "counters have them, 3 to 4 % more for a ResNet). Memory is an estimate, measured as a processor "
        "computes, in the way that a run on this machine would choose: what PyTorch and its libraries take "
        "comes on top, and it was never compared with a GPU."
    )
    for sentence in filter(None, map(_pixels_left_out, costs)):
        console.print_lines(sentence)
    if options["images"] is not None:
        console.out.print(
            f"Days are an estimate: at {options['utilization']:.0%} (assumed) of an H100's "
            f"{H100_FLOPS / 1e12:.0f} TFLOP/s."
        )
    following = "vitkit train PATH --model NAME"
    if all(is_checkpoint(name) for name in options["models"]):
        following = f"vitkit card {shlex.quote(options['models'][0])}"
    console.print_next(following)


def _pixels_left_out(cost: "Cost") -> str | None:
    """Say that the patches of a named model do not fill the image, and which model may have been meant."""
    if is_checkpoint(cost.model):
        return None
    config = model_config(cost.model, image_size=cost.image_size)
    if not config.cut_off:
        return None
    of_size = list_models(f"{cost.model.split('/')[0]}/*")
    near = [name for name in difflib.get_close_matches(cost.model, of_size, n=1) if name != cost.model]
    meant = f" Did you mean {near[0]}?" if near else ""
    return f"{cost.model}: {config.cut_off}.{meant}"


def _print_table6(rows: "list[Table6Row]") -> None:
    """Print the pre-training compute of the paper's Table 6 beside ours."""
    console.print_table(
        ("model", "epochs", "paper, exaFLOPs", "ours", "ratio"),
        (
            (row.model, str(row.epochs), f"{row.paper:,}", f"{row.ours:,.1f}", f"{row.ratio:.3f}")
            for row in rows
        ),
    )
    console.out.print(
        "\nPre-training on 303 million images at 224 pixels: 6 FLOPs for each multiply-accumulate of the "
        "forward pass, without the head and the zeros of padding. The paper's 7 epochs of R50+ViT-L/16 are "
        "more than half of its own 14."
    )


def _numbers(cost: "Cost") -> list[tuple[str, str]]:
    """Name and write the numbers that do not depend on batch and precision."""
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


def _print_model(cost: "Cost", options: Mapping[str, Any]) -> None:
    console.print_table((f"{cost.model} at {format_size(cost.image_size)}", ""), _numbers(cost))
    state = "AdamW" if options["optimizer"] == "adamw" else "SGD"
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
    memories = [asdict(memory) for memory in cost.training_memory.values()]
    rows = [
        (part, *(format_bytes(memory[key]) for memory in memories))
        for key, part in parts.items()
        if any(memory[key] for memory in memories)
    ]
    peaks = (format_bytes(memory.peak) for memory in cost.prediction_memory.values())
    console.print_lines("")
    console.print_table(
        (f"memory of {options['batch_size']:,} images at a time", "float32", "bfloat16"),
        [*rows, ("prediction, most at one time", *peaks)],
    )


def _print_many(costs: "list[Cost]", batch_size: int) -> None:
    headers = ["model", "parameters", "tokens", "forward", "training"]
    if costs[0].pretraining_flops is not None:
        headers += ["exaFLOPs", "H100 days"]
    rows = [
        (
            cost.model,
            *(number for _, number in _numbers(cost)),
            *(format_bytes(memory.peak) for memory in cost.training_memory.values()),
        )
        for cost in costs
    ]
    console.print_table((*headers, "memory", "in bfloat16"), rows)
    console.out.print(
        "\nforward and training: FLOPs for each image; memory: the most of a training "
        f"step of {batch_size:,} images."
    )
