"""Collect the results of other verbs for a checkpoint, for the page of a figure or table.

`COLLECTORS` has the function of each item of `items.py` that trains no arms.
"""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import read, to_json
from vitkit.durable import read_regular_file, refuse_link
from vitkit.jobs.bench.bench import bench, keep
from vitkit.jobs.bench.records import Bench, Memory, Response, Speed
from vitkit.jobs.cost import table6
from vitkit.jobs.fewshot.fewshot import run_fewshot
from vitkit.jobs.fewshot.options import FewShotOptions
from vitkit.jobs.inspect import inspect
from vitkit.jobs.reproduce.options import ItemName, ReproduceOptions
from vitkit.jobs.vtab.options import VtabOptions
from vitkit.jobs.vtab.result import portable_json, remarks, score_table
from vitkit.jobs.vtab.vtab import run_vtab
from vitkit.report.template import Part, Photo
from vitkit.tasks.page import Number, Table, fraction_cell


@dataclass(frozen=True)
class Collected:
    """The contents of the page of an item that trains no arms."""

    answer: tuple[str, ...]
    parts: tuple[Part, ...]
    numbers: Any
    """The same as plain data."""
    folders: tuple[str, ...] = ()
    """Folders within the study's, of runs that have a page of their own."""


TITLES = {
    "filters": "Filters of the patch embedding",
    "positions": "Similarity of position embeddings",
    "attention-distance": "Attention distance by depth",
    "attention-rollout": "Attention from the class token to the image",
}
"""The pictures of `vitkit inspect` by the names of their files."""


def pictures_of(*stems: str) -> Callable[[ReproduceOptions, Path], Collected]:
    """Make a function that collects some of the pictures of `vitkit inspect` for each start."""

    def collect(options: ReproduceOptions, folder: Path) -> Collected:
        parts: list[Part] = []
        answer, numbers = [], []
        for number, start in enumerate(options.starts, start=1):
            place, name = folder / f"inspect-{number}", Path(start).name
            refuse_link(place)  # the study may be somebody else's
            drawn = inspect(start, options.images, out=place, listener=options.listener)
            files = {path.stem: path for path in drawn.pictures if path.suffix == ".png"}
            present = [stem for stem in stems if stem in files]
            pictures = [_picture(files[stem], f"{TITLES[stem]}, {name}") for stem in present]
            absent = [stem for stem in stems if stem not in files]
            sentences = [f"{TITLES[stem]}: there is no picture of {name}." for stem in absent]
            if drawn.without_attention and any("attention" in stem for stem in absent):
                sentences.append(f"Without attention: {drawn.without_attention}.")
            parts.append((name, (*sentences, *pictures)))
            numbers.append({"start": name, "pictures": [f"inspect-{number}/{stem}.png" for stem in present]})
            answer += sentences
        if any(entry["pictures"] for entry in numbers):
            answer.insert(0, "The pictures below are of this model; compare them with the paper's by eye.")
        return Collected(tuple(answer), tuple(parts), numbers)

    return collect


_LARGEST_PICTURE = 32 << 20
"""Bytes of a picture that a page takes in; those of vitkit have some hundred thousand."""


def _picture(path: Path, alt: str) -> Photo:
    """Read a picture of a folder that may be somebody else's."""
    data = base64.b64encode(read_regular_file(path, _LARGEST_PICTURE)).decode()
    return Photo(f"data:image/png;base64,{data}", alt)


def collect_vtab(options: ReproduceOptions, folder: Path) -> Collected:
    """Fine-tune a start on the tasks of VTAB-1k that have a folder."""
    refuse_link(folder / "vtab")  # the study may be somebody else's
    result = run_vtab(
        VtabOptions(
            options.starts[0],
            options.data,
            out=folder / "vtab",
            steps=options.steps,
            device=options.device,
            threads=options.threads,
            listener=options.listener,
        )
    )
    mean = result.mean()
    answer = [] if mean is None else [f"The mean accuracy is {mean.accuracy:.1%} over {mean.tasks} tasks."]
    answer += remarks(result)
    part = ("Here, beside the paper's Table 9", (score_table(result),))
    folders = tuple(f"vtab/{score.folder}/final" for score in result.tasks)
    return Collected(tuple(answer), (part,), portable_json(result), folders)


TIMED = ("ViT-B/32", "ViT-B/16", "BiT-R50x1")
"""Models that are timed without a start: the smallest of the paper's ViTs and of its ResNets."""


def collect_speed(options: ReproduceOptions, folder: Path) -> Collected:
    """Time models at the paper's image sizes, unless `bench.json` has the times already."""
    path = folder / "bench.json"
    if not path.exists():
        models = options.starts or TIMED
        measured = bench(
            *models,
            image_size="64..512",
            minutes=options.minutes / len(models),
            threads=options.threads,
            device=options.device,
            listener=options.listener,
        )
        keep(measured, folder)
    measurement = read(Bench, path)
    assert measurement is not None  # it was written above
    records = [record for record in measurement.records if not isinstance(record, Response)]
    speeds = [record for record in records if isinstance(record, Speed) and record.library == "vitkit"]
    batches = {
        (record.model, record.image_size, record.precision): record.largest_batch
        for record in records
        if isinstance(record, Memory) and record.phase == "training"
    }
    rows = []
    for record in speeds:
        if record.phase == "inference":
            largest = batches.get((record.model, record.image_size, record.precision))
            rate = Number(f"{record.images_per_second:,.1f}", record.images_per_second)
            rows.append(
                (
                    record.model,
                    str(record.image_size[0]),
                    record.precision,
                    rate,
                    "–" if largest is None else f"{largest:,}",
                )
            )
    headings = ("model", "pixels", "precision", "images a second", "largest batch of training")
    picture = folder / "bench.png"
    pictures = (_picture(picture, "Speed and largest batch by image size"),) if picture.exists() else ()
    part = ("Here", (Table(headings, tuple(rows)), *pictures))
    sentence = (
        f"Measured on {measurement.machine.get('device')}; the paper's curves are of a TPUv3, whose numbers "
        "it does not print."
    )
    return Collected((sentence,), (part,), [to_json(record) for record in records])


def collect_compute(options: ReproduceOptions, folder: Path) -> Collected:
    """Count the compute of every row of Table 6."""
    rows = table6()
    table = Table(
        ("model", "epochs", "paper, exaFLOPs", "here, exaFLOPs", "here over paper"),
        tuple(
            (
                row.model,
                str(row.epochs),
                Number(f"{row.paper:,}", row.paper),
                Number(f"{row.ours:,.0f}", row.ours),
                Number(f"{row.ratio:.3f}", row.ratio),
            )
            for row in rows
        ),
    )
    worst = max(rows, key=lambda row: abs(row.ratio - 1))
    sentence = (
        f"The compute of the {len(rows)} rows is counted from the models; the largest difference from the "
        f"paper is {abs(worst.ratio - 1):.1%} ({worst.model}, {worst.epochs} epochs). The accuracies need "
        "JFT-300M, and are not measured here."
    )
    part = ("Compute, counted here and printed there", (table,))
    return Collected((sentence,), (part,), [to_json(row) for row in rows])


SHOTS = (5, 10)
"""Images of each class from which the classes are learned, as in the paper (4.1)."""


def collect_few_shot(options: ReproduceOptions, data: str, models: Mapping[str, Path]) -> Collected:
    """Measure the few-shot accuracy of frozen features, by the paper's ridge regression (4.1).

    Args:
        options: of the study.
        data: the images with labels.
        models: run folders by the labels of their arms.
    """
    starts = tuple(str(path) for path in models.values())
    measured = run_fewshot(
        FewShotOptions(
            starts,
            data,
            shots=SHOTS,
            methods=("ridge",),
            device=options.device,
            cache=False,  # nobody needs the features of these models again
            listener=options.listener,
        )
    )
    rows: list[tuple[str | Number, ...]] = []
    numbers = {}
    for label, model in zip(models, measured.models, strict=True):
        rows.append((label, *(fraction_cell(score.mean) for score in model.scores)))
        numbers[label] = {
            f"{score.shots} shots": {"mean": score.mean, "interval": score.interval} for score in model.scores
        }
    how = (
        "Ridge regression on the frozen features of a few images of each class, the mean of "
        f"{measured.seeds} draws, tested on {measured.test_images:,} images; guessing would be right on "
        f"{measured.chance:.1%}."
    )
    headings = ("", *(f"{shots} shots" for shots in SHOTS))
    part = ("Few-shot accuracy before fine-tuning", (Table(headings, tuple(rows)), how))
    return Collected((), (part,), numbers)


COLLECTORS: Mapping[ItemName, Callable[[ReproduceOptions, Path], Collected]] = {
    "fig2": collect_vtab,
    "fig6": pictures_of("attention-rollout"),
    "fig7": pictures_of("filters", "positions", "attention-distance"),
    "fig10": pictures_of("positions"),
    "fig11": pictures_of("attention-distance"),
    "fig12": collect_speed,
    "fig14": pictures_of("attention-rollout"),
    "table6": collect_compute,
    "table9": collect_vtab,
}
"""The figures and tables that train no arms."""
