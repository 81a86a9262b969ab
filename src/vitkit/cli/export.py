"""`vitkit export`: a model as the graph of an inference engine, for faster prediction."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import ExportOptions
from vitkit.runs.destination import refuse_taken


@dataclass(frozen=True)
class Command(ExportOptions):
    """Write a model for an inference engine, OpenVINO or ONNX Runtime, in a folder that predict and evaluate
    read."""


HELP = HelpPage(
    "CHECKPOINT OUT [OPTIONS]",
    (
        "--engine",
        "--precision",
        "--calibration",
        "--calibration-images",
        "--check-images",
        "--accept-change",
        "--image-size",
        "--num-heads",
    ),
    (
        "vitkit export runs/digits-ViT-96x6x3-4 digits_graph --engine onnxruntime",
        "vitkit export runs/mine mine_int8 --precision int8",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, export a model and print what came of it."""
    options: Command = parse(Command, arguments, "export", HELP)
    require_checkpoints(options.source)
    require_images(options.calibration)
    refuse_taken(Path(options.out))
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.export import run_export

    download(options.source)
    exported = run_export(options)
    for note in exported.notes:
        _print("note", f"{options.source}: {note}")
    if exported.calibration is not None:
        _print("images", f"calibrated on {exported.calibration}")
    if exported.nearness is not None:
        _print("checked", str(exported.nearness))
    if exported.agreement is not None:
        _print("same", str(exported.agreement))
    if exported.departure is not None:
        _print("note", exported.departure)
    _print("to", f"{exported.path} ({options.precision} by {options.engine})")
    folder = shlex.quote(str(exported.path))
    console.out.print(f"Next: vitkit predict {folder} IMAGE_OR_FOLDER", markup=False, soft_wrap=True)


def _print(heading: str, line: str) -> None:
    console.out.print(f"{heading:8} {line}", markup=False, soft_wrap=True)
