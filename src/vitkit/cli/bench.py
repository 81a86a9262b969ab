"""`vitkit bench`: how fast models are on this machine, also beside other libraries."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_models
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.bench.options import BenchOptions
from vitkit.text import format_bytes

if TYPE_CHECKING:
    from vitkit.jobs.bench.records import Memory, Record, Response, Speed


@dataclass(frozen=True)
class Command(BenchOptions):
    """Time models: images per second, latency, memory and largest batch, also beside other libraries.

    VITKIT_NO_KERNELS=1 switches compiled kernels off."""

    out: str | None = None
    """folder for bench.json and, of several sizes, the paper's Figure 12 as PNG and SVG."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""


HELP = HelpPage(
    "MODEL... [OPTIONS]",
    (
        "--peers",
        "--minutes",
        "--batch-size",
        "--sizes",
        "--training",
        "--precision",
        "--device",
        "--threads",
        "--out",
        "--json",
    ),
    (
        "vitkit bench ViT-Ti/16",
        "vitkit bench ViT-S/16 --peers --sizes 224,384",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    options: Command = parse(Command, arguments, "bench", HELP)
    require_models(options.models)
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.bench.bench import describe_machine, keep, measure
        from vitkit.jobs.bench.records import Bench
        from vitkit.runs.destination import make_folder, require_folder

    for model in options.models:
        download(model)
    if options.out is not None:  # now, and not when all has been measured
        require_folder(Path(options.out))
        make_folder(Path(options.out))
    machine = describe_machine(options)
    found: list[Record] = []
    ended = False
    try:
        for record in measure(options):
            found.append(record)  # noqa: PERF402 (what is there when Ctrl-C comes is printed)
        ended = True
    finally:
        if options.json_output and ended:
            console.print_json(Bench(machine, tuple(found)).to_json())
        elif found:  # with --json, the object that says the error stands alone on standard output
            _print(machine, found, console.err if options.json_output else console.out)
        if options.out is not None and found:
            for path in keep(Bench(machine, tuple(found)), Path(options.out)):
                console.err.print(str(path), markup=False, soft_wrap=True)
    if not options.json_output and not options.peers:
        models = " ".join(shlex.quote(model) for model in options.models)
        console.out.print(
            f"Next: vitkit bench {models} --peers   (beside other libraries)", markup=False, soft_wrap=True
        )


def _print(machine: dict[str, Any], found: "list[Record]", out: console.Terminal) -> None:
    """Print the machine, and for each model and size its tables."""
    from vitkit.jobs.bench.records import Memory, Response, Speed
    from vitkit.jobs.bench.speed import headlines

    load = "" if machine["load"] is None else f", load {machine['load']:.1f} at the start"
    kernels = ", ".join(f"{name}: {state}" for name, state in machine["kernels"].items())
    out.print(
        f"{machine['device']}, {machine['threads']} of {machine['cores']} cores{load}; {machine['clock']}; "
        f"torch {machine['torch']}\nkernels: {kernels}",
        markup=False,
        soft_wrap=True,
    )
    cases = dict.fromkeys((record.model, record.image_size) for record in found)
    for model, size in cases:
        own = [record for record in found if (record.model, record.image_size) == (model, size)]
        for phase in ("inference", "training"):
            speeds = [r for r in own if isinstance(r, Speed) and r.phase == phase]
            if speeds:
                first = speeds[0]
                title = f"{model} at {size[0]} pixels, {phase}, batch {first.batch_size}"
                out.print(f"\n[bold]{escape(title)}[/], compared with {escape(first.reference)}")
                out.print(_speeds(speeds))
                for line in headlines(speeds):
                    out.print(line, markup=False)
        responses = [record for record in own if isinstance(record, Response)]
        memories = [record for record in own if isinstance(record, Memory)]
        if responses:
            out.print()
            out.print(_latencies(responses))
        if memories:
            out.print()
            out.print(_memories(memories))
    out.print(
        "\nRatios are medians of rounds, with quartiles. Utilisation is FLOPs of the whole model, and those "
        "executed, over those of PyTorch's matrix products of its shapes, in the same precision and the same "
        "rounds; an engine with faster products is above 100 %."
    )


def _table(*columns: str) -> Table:
    table = Table(*columns, box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _speeds(speeds: "list[Speed]") -> Table:
    table = _table("", "images/s", "ms", "ratio", "quartiles", "utilisation", "executed")
    for speed in speeds:
        low, high = speed.ratio_quartiles
        table.add_row(
            escape(speed.name),
            f"{speed.images_per_second:,.1f}",
            f"{1e3 * speed.seconds:,.1f}",
            f"[bold]{speed.ratio:.2f}[/]",
            f"{low:.2f} to {high:.2f}",
            _share(speed.mfu),
            _share(speed.mfu_executed),
        )
    return table


def _share(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.0%}"


def _largest(memory: "Memory") -> str:
    if memory.largest_batch is None:
        return "not measured"
    return f"{memory.largest_batch:,}{'' if memory.tried else ' (by smaller ones)'}"


def _latencies(responses: "list[Response]") -> Table:
    table = _table("latency of one image", "p50", "p90", "p99", "calls")
    for response in responses:
        found = response.latency
        table.add_row(
            escape(response.name),
            f"{1e3 * found.p50:,.1f} ms",
            f"{1e3 * found.p90:,.1f} ms",
            "not measured" if found.p99 is None else f"{1e3 * found.p99:,.1f} ms",
            f"{found.calls:,}",
        )
    return table


def _memories(memories: "list[Memory]") -> Table:
    table = _table("memory", "batch", "peak", "largest batch", "of")
    for memory in memories:
        table.add_row(
            f"{memory.phase}, {escape(memory.name)}",
            f"{memory.batch_size:,}",
            format_bytes(memory.peak),
            _largest(memory),
            format_bytes(memory.room),
        )
    return table
