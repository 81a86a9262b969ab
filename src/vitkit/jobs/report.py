"""Write the report of a run: its folder as a page."""

import copy
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from vitkit._version import __version__
from vitkit.config import to_json
from vitkit.data.sources import Samples
from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.config import PLAIN
from vitkit.models.image_model import ImageModel
from vitkit.runs import closed_form, machine, records, series_record, start, trained_model
from vitkit.runs.config import read_config, shown_command
from vitkit.runs.folder import kind_of
from vitkit.tasks import task_of
from vitkit.text import without_places
from vitkit.training.checkpoint import processor_name, read_ended, read_manifest, survey
from vitkit.weights.loading import find_doubts

LINKED = ("model.safetensors", "model.json", "config.json", "metrics.jsonl", "speed.jsonl")
"""The files of a run that its page links to."""


@dataclass(frozen=True)
class Trained:
    """A run that has just ended, in memory, so that it is not read again."""

    config: Mapping[str, Any]
    """The contents of its `config.json`."""
    model: ImageModel
    """Its model with the final weights."""
    samples: Mapping[str, Samples]
    """Its images by split."""


def write_report(
    run: str | Path, *, trained: "Trained | None" = None, quiet: bool = False, listener: Listener = AUTOMATIC
) -> Path:
    """Write a run's `report.html`, from what is in its folder and the images it was trained on.

    Args:
        run: folder of a run or of a series of runs.
        trained: the run in memory; left out, it is read from the folder.
        quiet: whether nothing but warnings is heard.
        listener: hears the progress, and what is missing on the page.

    Returns:
        The page.

    Raises:
        VitkitError: it is no run folder, it has no checkpoint yet, or one of its files is damaged. Damaged
            lines of a log are left out, as the page and the listener say.
    """
    # It imports matplotlib, for which no training waits.
    from vitkit.report.page import ReportContent, render_report

    folder, listener = Path(run), hushed(listener, quiet)
    if trained is None:
        place = kind_of(folder)
        if place.kind == "series":
            return write_series_report(folder, listener)
        place.run()  # refuses a configuration that is none
        config: Mapping[str, Any] = read_config(folder)
        loaded = start.load_any(place)
        model, notes = loaded.model, list(loaded.notes)
    else:
        # A copy that computes in the plain way on the CPU, as a model that is read from the folder does.
        config, model = trained.config, copy.deepcopy(trained.model).cpu()
        machine.compute_as(model, PLAIN)
        notes = find_doubts(model.state_dict())
    record = trained_model.read_record(folder)
    answering = task_of(model.card).answering
    evaluations = {} if answering is None else trained_model.read_evaluations(folder, answering)
    metrics, speed = records.read_log(folder / "metrics.jsonl"), records.read_log(folder / "speed.jsonl")
    left_out = [log.left_out for log in (metrics, speed) if log.left_out]
    left_out += [f"{note[0].upper()}{note[1:]}." for note in notes]
    extended = closed_form.is_extended(folder)
    if extended:
        left_out.append(
            "Images were added to the head or taken out since: options and data are those of the run, and "
            "vitkit extend lists what the head learned from."
        )
    for sentence in left_out:
        listener.note(sentence)
    samples: Mapping[str, Samples] = {}
    try:
        samples = trained_model.open_model_data(model).splits if trained is None else trained.samples
    except VitkitError as error:  # the images are gone, and then the page has no pictures
        listener.note(f"Without pictures of images: {error}")
    for split, (_, predictions) in evaluations.items():
        if split in samples and predictions.ids.max() >= len(samples[split]):
            raise VitkitError(
                f"The predictions of {split} in {folder / 'evaluation'}: expected ids of the "
                f"{len(samples[split]):,} images, found {predictions.ids.max():,}. Run the evaluation again "
                "to write it anew."
            )
    quoted = shlex.quote(without_places(str(folder)))
    content = ReportContent(
        title=folder.resolve().name,
        model=model,
        config=without_places(config["run"]),
        data={} if record is None else to_json(replace(record, spec=without_places(record.spec))),
        metrics=metrics.lines,
        speed=speed.lines,
        followed=metrics.evaluated,
        examples=trained_model.read_examples(folder),
        left_out=left_out,
        evaluations=evaluations,
        samples=samples,
        refusal=None if model.card.refusal is None else trained_model.read_refusal(folder),
        commands=[
            shown_command(str(config.get("command") or "vitkit.train(...)")),
            f"vitkit extend {quoted}" if extended else f"vitkit evaluate {quoted}",
            f"vitkit predict {quoted} IMAGE_OR_FOLDER",
            f"vitkit inspect {quoted}",
        ],
        environment=_environment(folder),
        files=[
            *(name for name in LINKED if (folder / name).is_file()),
            *sorted(page.relative_to(folder).as_posix() for page in folder.glob("evaluation/*/*.html")),
        ],
    )
    path = folder / "report.html"
    with listener.progress("writing the report"):
        replace_file(path, [render_report(content).encode()])
    return path


def write_series_report(folder: Path, listener: Listener) -> Path:
    """Write the page of a series of runs.

    If the series is unfinished, the listener hears which of its runs to use in place of a final model.
    """
    from vitkit.report.template import write_page

    series = series_record.read_series(folder)
    if not series.ended:
        listener.note(series_record.explain_no_model(folder, series))
    names = [member.folder for member in series.all_members]
    pages = [name for name in names if (folder / name / "report.html").exists()]
    command = shown_command(series.command or "vitkit.train_series(...)")
    with listener.progress("writing the report"):
        return write_page(series, folder / "report.html", folders=pages, command=command)


def _environment(folder: Path) -> dict[str, Any]:
    """Describe the machine of the run, from its last checkpoint, and of this page."""
    checkpoint, ended = survey(folder).whole, read_ended(folder)
    trained: Any = {} if ended is None else ended.environment
    # A process that trains on may have removed it.
    if checkpoint is not None and (checkpoint / "manifest.json").exists():
        trained = read_manifest(checkpoint).environment
    return {
        **trained,
        "report written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "report by": f"vitkit {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "report on": f"{processor_name()}, {os.cpu_count()} cores",
    }
