"""`vitkit bench`: how fast models are on this machine, also beside other libraries."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from vitkit.cli import console
from vitkit.cli.checks import require_models
from vitkit.cli.options import JsonOption, importing, parse
from vitkit.jobs.bench.options import BenchOptions
from vitkit.text import format_bytes

if TYPE_CHECKING:
    from vitkit.jobs.bench.records import Memory, Record, Response, Speed

NOT_MEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, BenchOptions):
    """Time models: images per second, latency, memory and largest batch, also beside other libraries.

    VITKIT_NO_KERNELS=1 switches compiled kernels off."""

    out: str | None = None
    """folder for bench.json and, for several sizes, the paper's Figure 12 as PNG and SVG."""


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    options = parse(Command, arguments, "bench")
    require_models(options.models)
    with importing():
        from vitkit.jobs.bench.bench import describe_machine, keep, measure
        from vitkit.jobs.bench.records import Bench
        from vitkit.runs.destination import make_folder, require_folder

    console.download(*options.models)
    if options.out is not None:  # before minutes of measurements
        require_folder(Path(options.out))
        make_folder(Path(options.out))
    machine = describe_machine(options)
    records: list[Record] = []
    is_complete = False
    try:
        for record in measure(options):
            records.append(record)  # noqa: PERF402 (Ctrl-C leaves the records so far, which are printed)
        is_complete = True
    finally:
        if options.json and is_complete:
            console.print_json(Bench(machine, tuple(records)).to_json())
        elif records:  # with --json, the object with the error stands alone on standard output
            _print(machine, records, console.err if options.json else console.out)
        if options.out is not None and records:
            for path in keep(Bench(machine, tuple(records)), Path(options.out)):
                console.err.print(str(path), markup=False, soft_wrap=True)
    if not options.json and not options.peers:
        console.print_next(f"vitkit bench {shlex.join(options.models)} --peers   (beside other libraries)")


def _print(machine: dict[str, Any], records: "list[Record]", out: console.Terminal) -> None:
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
    cases = dict.fromkeys((record.model, record.image_size) for record in records)
    for model, size in cases:
        own = [record for record in records if (record.model, record.image_size) == (model, size)]
        for phase in ("inference", "training"):
            speeds = [record for record in own if isinstance(record, Speed) and record.phase == phase]
            if speeds:
                first = speeds[0]
                title = f"{model} at {size[0]} pixels, {phase}, batch {first.batch_size}"
                out.print(f"\n[bold]{escape(title)}[/], compared with {escape(first.reference)}")
                console.print_table(
                    ("", "images/s", "ms", "ratio", "quartiles", "utilisation", "executed"),
                    map(_speed_cells, speeds),
                    to=out,
                )
                for line in headlines(speeds):
                    out.print(line, markup=False)
        responses = [record for record in own if isinstance(record, Response)]
        if responses:
            out.print()
            console.print_table(
                ("latency of one image", "p50", "p90", "p99", "calls"),
                map(_latency_cells, responses),
                to=out,
            )
        memories = [record for record in own if isinstance(record, Memory)]
        if memories:
            out.print()
            console.print_table(
                ("memory", "batch", "peak", "largest batch", "of"), map(_memory_cells, memories), to=out
            )
    out.print(
        "\nRatios are medians of rounds, with quartiles. Utilisation is the FLOPs per second of the whole "
        "model, and the executed ones, over the FLOPs per second of PyTorch's matrix products of its shapes, "
        "in the same precision and the same rounds; an engine with faster products is above 100 %."
    )


def _speed_cells(speed: "Speed") -> tuple[str | Text, ...]:
    low, high = speed.ratio_quartiles
    return (
        speed.name,
        f"{speed.images_per_second:,.1f}",
        f"{1e3 * speed.seconds:,.1f}",
        console.bold(f"{speed.ratio:.2f}"),
        f"{low:.2f} to {high:.2f}",
        *(NOT_MEASURED if mfu is None else f"{mfu:.0%}" for mfu in (speed.mfu, speed.mfu_executed)),
    )


def _latency_cells(response: "Response") -> tuple[str, ...]:
    latency = response.latency
    quantiles = (latency.p50, latency.p90, latency.p99)
    milliseconds = (NOT_MEASURED if time is None else f"{1e3 * time:,.1f} ms" for time in quantiles)
    return response.name, *milliseconds, f"{latency.calls:,}"


def _memory_cells(memory: "Memory") -> tuple[str, ...]:
    largest = NOT_MEASURED
    if memory.largest_batch is not None:
        largest = f"{memory.largest_batch:,}{'' if memory.tried else ' (by smaller ones)'}"
    return (
        f"{memory.phase}, {memory.name}",
        f"{memory.batch_size:,}",
        format_bytes(memory.peak),
        largest,
        format_bytes(memory.room),
    )
