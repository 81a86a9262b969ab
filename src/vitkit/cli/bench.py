"""`vitkit bench`: how fast models are on this machine, also beside other libraries."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.text import Text

from vitkit.cli import console
from vitkit.cli.checks import require_models
from vitkit.cli.options import call, importing, parse_given
from vitkit.cli.verb_options import JSON, Option, describe
from vitkit.jobs.functions import read_signature
from vitkit.text import format_bytes

if TYPE_CHECKING:
    from vitkit.jobs.bench.records import Memory, Record, Response, Speed

NOT_MEASURED = "not measured"


SIGNATURE = read_signature("vitkit.jobs.bench.bench", "bench")
OUT = Option(
    "--out",
    "out",
    "PATH",
    "folder for bench.json and, for several sizes, the paper's Figure 12 as PNG and SVG.",
    None,
)
OPTIONS = (*describe(SIGNATURE, without=("into",)), OUT, JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    given = parse_given(SIGNATURE, OPTIONS, arguments, "bench")
    models, out, as_json = given.get("models", ()), given.get("out"), given.get("json")
    require_models(models)
    with importing():
        from vitkit.jobs.bench.bench import bench, describe_machine, keep
        from vitkit.jobs.bench.records import Bench
        from vitkit.runs.destination import make_folder, require_folder
        from vitkit.runs.machine import find_device

    console.download(*models)
    if out is not None:  # before minutes of measurements
        require_folder(Path(out))
        make_folder(Path(out))
    machine = describe_machine(find_device(given.get("device", "auto")), given.get("threads"))
    records: list[Any] = []
    is_complete = False
    try:
        call(bench, {**given, "into": records}, OPTIONS)
        is_complete = True
    finally:
        measured = Bench(machine, tuple(records))
        if as_json and is_complete:
            console.print_json(measured.to_json())
        elif records:  # with --json, the object with the error stands alone on standard output
            _print(machine, records, console.err if as_json else console.out)
        if out is not None and records:
            for path in keep(measured, Path(out)):
                console.err.print(str(path), markup=False, soft_wrap=True)
    if not as_json and not given.get("peers"):
        console.print_next(f"vitkit bench {shlex.join(models)} --peers   (beside other libraries)")


def _print(machine: dict[str, Any], records: "list[Record]", out: console.Terminal) -> None:
    """Print the machine, and for each model and size its tables."""
    from vitkit.jobs.bench.bench import headlines
    from vitkit.jobs.bench.records import Memory, Response, Speed

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
                columns = ("", "images/s", "ms", "ratio", "quartiles", "utilisation", "executed")
                console.print_table(columns, map(_speed_cells, speeds), to=out)
                for line in headlines(speeds):
                    out.print(line, markup=False)
        kinds: tuple[tuple[Any, Any, tuple[str, ...]], ...] = (
            (Response, _latency_cells, ("latency of one image", "p50", "p90", "p99", "calls")),
            (Memory, _memory_cells, ("memory", "batch", "peak", "largest batch", "of")),
        )
        for kind, cells, headings in kinds:
            measured = [record for record in own if isinstance(record, kind)]
            if measured:
                out.print()
                console.print_table(headings, map(cells, measured), to=out)
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
