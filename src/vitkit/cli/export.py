"""`vitkit export`: a model as the graph of an inference engine, for faster prediction."""

import shlex
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.runs.destination import refuse_taken

VERB = Verb("export", "vitkit.jobs.export", "export")


def main(arguments: list[str]) -> None:
    """Parse the command line, export a model, and print how its graph compares with it."""
    given = VERB.parse(arguments)
    refuse_taken(Path(given["out"]))
    exported = VERB.call(given)
    for note in exported.notes:
        console.print_fact("note", f"{given['source']}: {note}")
    if exported.calibration is not None:
        console.print_fact("images", f"calibrated on {exported.calibration}")
    if exported.nearness is not None:
        console.print_fact("checked", str(exported.nearness))
    if exported.agreement is not None:
        console.print_fact("same", str(exported.agreement))
    if exported.departure is not None:
        console.print_fact("note", exported.departure)
    console.print_fact("to", f"{exported.path} ({exported.precision} by {exported.engine})")
    console.print_next(f"vitkit predict {shlex.quote(str(exported.path))} IMAGE_OR_FOLDER")
