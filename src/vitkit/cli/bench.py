"""`vitkit bench`: how fast models are on this machine, also beside other libraries."""

import shlex
from pathlib import Path
from typing import Any

from vitkit.cli import console
from vitkit.cli.options import Verb, importing
from vitkit.cli.verb_options import JSON, Option

OUT = Option(
    "--out",
    "out",
    "PATH",
    "folder for bench.json and, for several sizes, the paper's Figure 12 as PNG and SVG.",
    None,
)
VERB = Verb("bench", "vitkit.jobs.bench.bench", "bench", OUT, JSON, without=("into",))


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    given = VERB.parse(arguments)
    models, out, as_json = given.get("models", ()), given.get("out"), given.get("json")
    with importing():
        from vitkit.jobs.bench.bench import describe_machine, keep
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
        VERB.call({**given, "into": records})
        is_complete = True
    finally:
        measured = Bench(machine, tuple(records))
        if as_json and is_complete:
            console.print_json(measured.to_json())
        elif records:  # with --json, the object with the error stands alone on standard output
            console.print_blocks(measured.blocks(), to=console.err if as_json else None)
        if out is not None and records:
            for path in keep(measured, Path(out)):
                console.err.print(str(path), markup=False, soft_wrap=True)
    if not as_json and not given.get("peers"):
        console.print_next(f"vitkit bench {shlex.join(models)} --peers   (beside other libraries)")
