"""Render one page about a run: how good the model is, where it fails, what it looks at, and how it was made.

The page's content security policy runs no script except the script that sorts tables and enlarges pictures.
Below the page stand its pictures, which a task chooses, and the section on the few-shot accuracy during
training.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vitkit.analysis import figures, inspect, model_figures
from vitkit.analysis.drawing import enlarged, image_data_uri
from vitkit.analysis.study_figures import tracking_plot
from vitkit.config import to_json
from vitkit.data.channels import to_rgb
from vitkit.data.sources import Samples
from vitkit.data.transforms import preprocess
from vitkit.errors import DecodeError
from vitkit.evaluation.fewshot.tracking import SEEDS
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import forward_flops
from vitkit.models.vit import ViT
from vitkit.report.template import Drawing, drawing, drawn, fill, page_script
from vitkit.result import Number, Plot, Table, Text
from vitkit.tasks import task_of
from vitkit.tasks.learning import Learning
from vitkit.tasks.page import LOSS_LABELS, Block, Pictures, Section, ShownImage, fraction_cell
from vitkit.text import format_count, format_duration, join_names, pluralize
from vitkit.training.checkpoint import Progress
from vitkit.training.evaluators import judge
from vitkit.weights.model_card import card_of, preprocessing_of, to_give_away

DISTANCE_IMAGES = 128  # as many as the paper (D.7)
REJECTS_SHOWN = 200  # nobody reads more of a data set that is damaged as a whole
LEVELS_SHOWN = 8  # of nested settings: vitkit's have three, and a run that was given away may have thousands
THUMBNAIL = 192  # pixels
ATTENTION_FLOATS = 1 << 26  # of one layer's attention at a time: 256 MiB


@dataclass(frozen=True)
class Picture:
    sources: tuple[str, ...]  # data URIs, side by side
    alt: str
    key: str
    true: str
    predicted: str
    confidence: float


@dataclass(frozen=True)
class ShownEvaluation:
    """The evaluation that the page is about, and its images."""

    split: str
    result: Any
    predictions: Any
    samples: Samples | None


@dataclass(frozen=True)
class ReportContent:
    """The content of the page."""

    title: str
    """Name of the run."""
    model: ImageModel
    """The trained model, on the CPU, with its card."""
    config: Mapping[str, Any]
    """The run's configuration as nested plain data."""
    data: Mapping[str, Any]
    """`name`, `spec`, `kind`, `class_names`, `counts` {split: {class: images}}, `notes`, `rejects`
    {split: {key: reason}}, `fingerprint`; all may be missing."""
    metrics: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl: `kind` "train" or "validation", `step`, `epoch`, `loss`, and
    `learning_rate` or `accuracy`. Among lines of the same step the last one counts."""
    speed: Sequence[Mapping[str, Any]]
    """`step`, `images_per_second`, `seconds` (since training was started or resumed), `memory_bytes`."""
    evaluations: Mapping[str, tuple[Any, Any]]
    """Evaluations by split, "test" or "val": numbers and predictions of the task that the model's card
    names."""
    samples: Mapping[str, Samples]
    """Images by split, for the pictures; empty if the data is missing."""
    commands: Sequence[str]
    """Commands that made the run, and the next useful ones."""
    environment: Mapping[str, str]
    """Versions, machine, threads, date."""
    examples: NDArray[np.uint8] | None = None
    """A picture of the model's predictions, where its task answers nothing."""
    followed: Sequence[Mapping[str, Any]] = ()
    """The lines of metrics.jsonl of other evaluators: `evaluator`, `step` and its metrics."""
    left_out: Sequence[str] = ()
    """Sentences that say which of the run's records could not be read."""
    files: Sequence[str] = ()
    """Names of files beside the page that a reader may want to open."""


def render_report(content: ReportContent, progress: Callable[[str], None] | None = None) -> str:
    """Render the page as HTML.

    Args:
        content: of the page, which names what is missing (validation, evaluation, pictures).
        progress: called with the name of each part before it is made.

    Returns:
        A whole document, to be written as UTF-8.
    """
    say = progress or (lambda part: None)
    model, card = content.model, to_give_away(card_of(content.model))
    task, evaluation, split = task_of(model.card), None, None
    for split in sorted(content.evaluations, key=lambda split: (split != "test", split != "val", split))[:1]:
        evaluation = ShownEvaluation(split, *content.evaluations[split], content.samples.get(split))
    say("results")
    if task.answering is not None:
        task_report = task.answering.report(content.evaluations, split)
    else:
        validations = [line for line in content.metrics if line["kind"] == "validation"]
        task_report = task.learning.report(content.examples, validations)
    say("training curves")
    page: dict[str, Any] = {
        **vars(content),
        "model_name": model.card.name or "ViT",
        "start": card.origin.get("start", {}).get("from"),
        "evaluation": evaluation,
        "task_report": task_report,
        "facts": [*task_report.facts, *_facts(content)],
        "curve": task.learning.curve,
        "curves": _curves(content.metrics, task.learning, _altered(content.config)),
        "altered": _altered(content.config),
        "loss": task.learning.curve.loss or LOSS_LABELS[model.card.loss],
        "weights": str(card.origin.get("weights", "")).removeprefix("weights "),
        "has_validation": any(line["kind"] == "validation" for line in content.metrics),
        "configuration": _flat(content.config),
        "card": _flat(
            {
                "preprocessing": to_json(card.preprocessing) if card.preprocessing else {},
                "augmentation": to_json(card.augmentation) if card.augmentation else {},
                "origin": card.history(),
            }
        ),
        "class_counts": _class_counts(content.data),
        "rejects": [
            (split, key, reason)
            for split, files in content.data.get("rejects", {}).items()
            for key, reason in files.items()
        ],
        "rejects_shown": REJECTS_SHOWN,
    }
    say("pictures of images")
    sections = (*fewshot_sections(content.followed, content.config), *task_report.sections)
    page["sections"] = [(part, [_drawn(block, evaluation) for block in part.blocks]) for part in sections]
    if evaluation is not None:
        say("attention rollout")
        page["rollouts"] = (
            rollouts(model, evaluation, task_report.attention) if inspect.has_attention_maps(model) else []
        )
    say("filters, positions and attention distance")
    page["attention_maps"] = inspect.has_attention_maps(model)
    page |= _inside(model, evaluation)
    return fill("report.html.j2", {**page, **page_script()})


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    """Collect the facts at the head of the page beside the accuracy: a value and its name each."""
    config = content.model.config
    facts = [(format_count(sum(weight.numel() for weight in content.model.parameters())), "parameters")]
    flops = format_count(forward_flops(config, head=True))
    facts.append((flops, f"FLOPs for an image of {config.image_size[0]} × {config.image_size[1]}"))
    if content.speed:
        rates = sorted(line["images_per_second"] for line in content.speed)
        clock = [float(line["seconds"]) for line in content.speed]
        # The seconds of all sessions: where the clock goes back, a run was resumed.
        spent = sum(now for now, later in zip(clock, [*clock[1:], -1.0], strict=True) if later < now)
        facts.append((format_duration(spent), "training time"))
        facts.append((f"{rates[len(rates) // 2]:,.0f}", "training images per second"))
        memory = max(line.get("memory_bytes") or 0 for line in content.speed)
        if memory:
            facts.append((f"{memory / 2**30:.1f} GiB", "memory at most"))
    return facts


def _curves(metrics: Sequence[Mapping[str, Any]], learning: Learning, altered: str) -> list[Drawing]:
    curve, monitor, progress = learning.curve, learning.monitor, Progress()
    train = _columns(metrics, "train", ("step", "epoch", "loss", "learning_rate"))
    names = {"step", "epoch", "loss", curve.metric, monitor.metric, monitor.tie_breaker or monitor.metric}
    validation = _columns(metrics, "validation", sorted(names))
    if not len(train["step"]) and not len(validation["step"]):
        return []
    steps = int(max([*train["step"], *validation["step"]]))
    for row in range(len(validation["step"])):  # as the run itself chose its best step
        numbers = {name: float(column[row]) for name, column in validation.items()}
        progress = judge(monitor, numbers, row, progress)
    drawn = figures.training_curves(
        train,
        validation,
        altered,
        curve.metric,
        curve.title,
        curve.label,
        progress.best_step,
        curve.is_fraction,
    )
    pictures = {"loss": "Loss", "metric": curve.title, "rate": "Learning rate"}
    return [
        drawing(figure, name, f"{what} over {steps:,} steps of training.")
        for figure, (name, what) in zip(drawn, pictures.items(), strict=True)
    ]


def _altered(config: Mapping[str, Any]) -> str:
    """Name the options that change the training loss and not the validation loss."""
    objective = config.get("objective", {})
    sentences = [
        f"{name.replace('_', ' ')} {objective[name]:g}"
        for name in ("label_smoothing", "mixup")
        if objective.get(name)
    ]
    return " and ".join(sentences)


def _drawn(block: Block, evaluation: ShownEvaluation | None) -> Any:
    """Turn a block of a section into a value for the template: a figure into SVG, a choice into pictures."""
    if not isinstance(block, Pictures):
        return drawn(block)
    if not block.images or evaluation is None:
        return Text(block.none)
    shown = pictures(evaluation, block)
    return {"pictures": shown, "caption": block.caption.replace("{count}", f"{len(shown):,}")}


def _inside(model: ImageModel, evaluation: ShownEvaluation | None) -> dict[str, Any]:
    """Draw the three panels of the paper's Figure 7, as far as the model has them."""
    filters = positions = distances = None
    if model.config.in_channels in (1, 3) and model.config.width > 1:
        components, explained = inspect.patch_filters(model)
        alt = f"The first {len(components)} principal components of the filters that see the pixels."
        filters = drawing(model_figures.filter_grid(components, explained), "filters", alt)
    similarity = inspect.position_similarity(model)
    if similarity is not None:
        alt = "For every patch, the similarity of its position embedding with all others."
        positions = drawing(model_figures.position_similarity_map(similarity), "positions", alt)
    if evaluation is not None and inspect.has_attention_maps(model):
        ids = evaluation.predictions.ids
        spread = np.linspace(0, len(ids) - 1, min(len(ids), DISTANCE_IMAGES)).round().astype(int)
        _, images = model_images(model, evaluation, ids[spread].tolist(), DISTANCE_IMAGES)
        if images:
            pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
            measured = inspect.attention_distance(model, pixels, attention_batch(model))
            height, width = model.config.image_size
            count = f"{len(images)} {evaluation.split} image{'s' * (len(images) != 1)}"
            data = f"{count} of {height} x {width} pixels"
            figure = model_figures.attention_distance_plot(
                measured, inspect.even_attention_distance(model), data
            )
            alt = f"Mean attention distance of every head by layer, {data}."
            distances = drawing(figure, "distances", alt)
    return {"filters": filters, "positions": positions, "distances": distances}


def _columns(
    metrics: Sequence[Mapping[str, Any]], kind: str, names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    lines = {line["step"]: line for line in metrics if line["kind"] == kind}
    table = np.array(
        [[_finite(lines[step].get(name)) for name in names] for step in sorted(lines)], np.float64
    )
    return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))


def _finite(value: Any) -> float:
    """Return a finite number; NaN, which plots leave out, for any other value."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _class_counts(data: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Count the images of every class in every split, and their sums."""
    counts = data.get("counts", {})
    names = list(data.get("class_names", ())) or sorted({name for split in counts.values() for name in split})
    rows = [(name, [split.get(name, 0) for split in counts.values()]) for name in names]
    images = data.get("images", {})  # an image with several labels counts once
    totals = [images.get(split, sum(counts[split].values())) for split in counts]
    return [*rows, ("all", totals)] if counts else []


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested plain data into rows: name with dots, value."""
    rows = []
    for key, value in nested.items():
        if isinstance(value, Mapping) and value and prefix.count(".") < LEVELS_SHOWN:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", _value(value)))
    return rows


def _value(value: Any) -> str:
    """Format a setting as JSON."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deep to be shown)"


def pictures(evaluation: ShownEvaluation, chosen: Pictures) -> list[Picture]:
    """Show the readable images of a task's choice, up to its number."""
    made = []
    for shown in chosen.images:
        image = _decode(evaluation, shown.index)
        if image is not None:
            source = image_data_uri(_shrunk(to_rgb(image)))
            made.append(_picture(evaluation, shown, "", (source,)))
        if len(made) == chosen.most:
            break
    return made


def rollouts(model: ViT, evaluation: ShownEvaluation, chosen: Pictures) -> list[Picture]:
    """Show images of a task's choice, and where the model looks.

    Args:
        model: with attention between all tokens.
        evaluation: its predictions.
        chosen: the task's choice.
    """
    indices = [shown.index for shown in chosen.images]
    positions, images = model_images(model, evaluation, indices, chosen.most)
    if not positions:
        return []
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    size = attention_batch(model)
    maps = [inspect.attention_rollout(model, pixels[i : i + size]) for i in range(0, len(pixels), size)]
    made = []
    for position, image, heat in zip(positions, images, np.concatenate(maps), strict=True):
        large = enlarged(to_rgb(image), THUMBNAIL)
        overlay = model_figures.heat_overlay(large, heat)
        sources = tuple(image_data_uri(_shrunk(part)) for part in (large, overlay))
        made.append(_picture(evaluation, chosen.images[position], "with its attention map, ", sources))
    return made


def _decode(evaluation: ShownEvaluation, index: int) -> NDArray[np.uint8] | None:
    """Decode an image `(H, W, C)` of the split; None if the data is gone or cannot be read."""
    if evaluation.samples is None:
        return None
    try:
        return evaluation.samples.decode(index)
    except DecodeError:
        return None


def model_images(
    model: ImageModel, evaluation: ShownEvaluation, indices: Sequence[int], count: int
) -> tuple[list[int], list[NDArray[np.uint8]]]:
    """Read the first `count` readable images of `indices`.

    Returns:
        Their positions among `indices`, and the images `(H, W, C)` as the model sees them.
    """
    preprocessing = preprocessing_of(model)
    readable, images = [], []
    for position, index in enumerate(indices):
        image = _decode(evaluation, index)
        if image is not None:
            readable.append(position)
            images.append(preprocess(image, preprocessing))
        if len(images) == count:
            break
    return readable, images


def _picture(
    evaluation: ShownEvaluation, shown: ShownImage, phrase: str, sources: tuple[str, ...]
) -> Picture:
    assert evaluation.samples is not None  # it was decoded
    return Picture(
        sources=sources,
        alt=f"An image of {shown.true}, {phrase}predicted to be {shown.predicted}.",
        key=evaluation.samples.key(shown.index),
        true=shown.true,
        predicted=shown.predicted,
        confidence=shown.confidence,
    )


def _shrunk(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    thumbnail = Image.fromarray(image)
    thumbnail.thumbnail((THUMBNAIL, THUMBNAIL))  # never enlarges
    return np.asarray(thumbnail)


def attention_batch(model: ViT) -> int:
    """Return the number of images whose attention in one layer fits into `ATTENTION_FLOATS`."""
    config = model.config
    return max(1, min(32, ATTENTION_FLOATS // (config.num_heads * config.num_tokens**2)))


def fewshot_sections(followed: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Iterator[Section]:
    """Make a section of the page for each evaluator that measured few-shot accuracy.

    Args:
        followed: the lines of evaluators in metrics.jsonl. Among lines of the same step the last one counts.
        config: of the run, as nested plain data.
    """
    images = PurePath(str(config.get("fewshot", {}).get("data", ""))).name or "other images"
    for evaluator in dict.fromkeys(str(line.get("evaluator")) for line in followed):
        measured = {line["step"]: line for line in followed if line.get("evaluator") == evaluator}
        steps, keys = sorted(measured), dict.fromkeys(key for line in measured.values() for key in line)
        names = [name for name in keys if name.endswith(("_shots", "_all"))]
        if not names:
            continue
        curves = {_label(name): [_finite(measured[step].get(name)) for step in steps] for name in names}
        rows = tuple(
            (Number(f"{step:,}", step), *(_cell(accuracies[i]) for accuracies in curves.values()))
            for i, step in enumerate(steps)
        )
        last = ", ".join(f"{name} {accuracies[-1]:.1%}" for name, accuracies in curves.items())
        alt = f"Few-shot accuracy over {len(steps)} measurements; at step {steps[-1]:,}: {last}."
        draws = 1 if names[0].endswith("_all") else SEEDS
        caption = (
            f"{_ways(names)} on the model's features at that step, with the same images of each class at "
            f"every step; the mean of {pluralize(draws, 'draw')}. It decided nothing in the training."
        )
        blocks = (
            Plot(partial(tracking_plot, steps, curves, images), evaluator, alt),
            Text(caption, "caption"),
            Table(("step", *curves), rows, sortable=True),
        )
        yield Section(evaluator, "Few-shot", "Few-shot accuracy while it was trained", blocks)


def _ways(names: Sequence[str]) -> str:
    """Name the ways to learn from features of which accuracies are named, to begin a sentence."""
    phrases = {
        "ridge": "least squares in closed form (the paper's few-shot accuracy)",
        "knn": "nearest neighbours by the cosine (knn)",
        "logistic": "logistic regression",
    }
    methods = dict.fromkeys(name.partition("_")[0] for name in names)
    named = join_names([phrases.get(method, method) for method in methods])
    return f"{named[0].upper()}{named[1:]}"


def _label(name: str) -> str:
    """Turn "ridge_5_shots" into "5 shots", "knn_5_shots" into "5 shots, knn", "logistic_all" into "linear
    probe"."""
    method, shots = name.split("_")[:2]
    if shots == "all":
        return "linear probe" if method == "logistic" else f"all images, {method}"
    label = "1 shot" if shots == "1" else f"{shots} shots"
    return label if method == "ridge" else f"{label}, {method}"


def _cell(fraction: float) -> Number:
    return fraction_cell(None if math.isnan(fraction) else fraction)
