"""`vitkit report`: a run folder on one page."""

import os
import platform
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import tyro

from vitkit._version import __version__
from vitkit.apps import console
from vitkit.apps.folder import data_of, read_evaluations, read_json, read_lines
from vitkit.apps.report import ReportContent, render_report
from vitkit.apps.run import read_config
from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.models.weights import load_model
from vitkit.training.checkpoint import find_checkpoint, processor_name


def write_report(run: str | Path) -> Path:
    """Write `report.html` into a run folder, from what is in it and the images it was trained on.

    Raises:
        VitkitError: it is no run folder, or training has not finished.
    """
    folder = Path(run)
    config = read_config(folder)
    model = load_model(folder)
    record = read_json(folder / "data.json")
    try:
        samples = data_of(model).splits
    except VitkitError as error:
        console.err.print(f"Without pictures of images: {error}", markup=False)
        samples = {}
    quoted = shlex.quote(str(folder))
    content = ReportContent(
        title=folder.resolve().name,
        model=model,
        config=config["run"],
        data=record,
        metrics=read_lines(folder / "metrics.jsonl"),
        speed=read_lines(folder / "speed.jsonl"),
        evaluations=read_evaluations(folder),
        samples=samples,
        commands=[
            config.get("command") or "vitkit.train(...)",
            f"vitkit evaluate {quoted}",
            f"vitkit predict {quoted} IMAGE_OR_FOLDER",
            f"vitkit inspect {quoted}",
        ],
        environment=_environment(folder),
    )
    path = folder / "report.html"
    with console.err.status("writing the report") as status:
        page = render_report(content, lambda part: status.update(f"writing the report: {part}"))
    replace_file(path, [page.encode()])
    return path


def _environment(folder: Path) -> dict[str, str]:
    """Where the run was trained, by its last checkpoint, and when this page was written."""
    checkpoint, _ = find_checkpoint(folder)
    trained = read_json(checkpoint / "manifest.json")["environment"] if checkpoint else {}
    return {
        **{str(key): str(value) for key, value in trained.items()},
        "report written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "report by": f"vitkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "report on": f"{processor_name()}, {os.cpu_count()} cores",
    }


def main(arguments: list[str]) -> None:
    def command(run: Annotated[str, tyro.conf.Positional]) -> None:
        """Write a run's report.html again.

        Args:
            run: run folder.
        """
        path = write_report(run)
        console.out.print(
            f"{path} ({console.size(path.stat().st_size)}). Open it in a browser; it needs no network.",
            markup=False,
        )

    tyro.cli(command, args=arguments, prog="vitkit report")
