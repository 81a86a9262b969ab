"""`vitkit export`: a model as the graph of an inference engine, for faster prediction."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import ExportOptions
from vitkit.runs.destination import refuse_taken


@dataclass(frozen=True, kw_only=True)
class Command(ExportOptions):
    """Write a model for an inference engine, OpenVINO or ONNX Runtime, into a folder that predict and
    evaluate read."""


def main(arguments: list[str]) -> None:
    """Parse the command line, export a model, and print how its graph compares with it."""
    options = parse(Command, arguments, "export")
    require_checkpoints(options.source)
    require_images(options.calibration)
    refuse_taken(Path(options.out))
    with importing():
        from vitkit.jobs.export import run_export

    console.download(options.source)
    exported = run_export(options)
    for note in exported.notes:
        console.print_fact("note", f"{options.source}: {note}")
    if exported.calibration is not None:
        console.print_fact("images", f"calibrated on {exported.calibration}")
    if exported.nearness is not None:
        console.print_fact("checked", str(exported.nearness))
    if exported.agreement is not None:
        console.print_fact("same", str(exported.agreement))
    if exported.departure is not None:
        console.print_fact("note", exported.departure)
    console.print_fact("to", f"{exported.path} ({options.precision} by {options.engine})")
    console.print_next(f"vitkit predict {shlex.quote(str(exported.path))} IMAGE_OR_FOLDER")
