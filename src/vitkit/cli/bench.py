"""`vitkit bench`: how fast models are on this machine, also beside other libraries."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON, Option
from vitkit.runs.folder import make_folder, require_folder

if TYPE_CHECKING:
    from vitkit.jobs.bench.records import Bench

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
    out, as_json = given.get("out"), given.get("json")
    if out is not None:  # before minutes of measurements
        require_folder(Path(out))
        make_folder(Path(out))
    results: list[Bench] = []
    is_complete = False
    try:
        results.append(VERB.call(given, into=results))
        is_complete = True
    finally:
        if as_json and is_complete:
            console.print_json(results[-1].to_json())
        elif results and results[-1].records:
            # With --json, the object with the error stands alone on standard output.
            console.print_blocks(results[-1].blocks(), to=console.err if as_json else None)
        if out is not None and results and results[-1].records:
            from vitkit.jobs.bench.bench import keep

            for path in keep(results[-1], Path(out)):
                console.err.print(str(path), markup=False, soft_wrap=True)
    if not as_json and not given.get("peers"):
        models = shlex.join(given["models"])
        console.print_next(f"vitkit bench {models} --peers   (beside other libraries)")
