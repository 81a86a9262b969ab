"""Render one page about a run: how good the model is, where it fails, what it looks at, and how it was made.

A task chooses the pictures and says how good the model is; the sections on training, attention, the inside of
the model, its data and its few-shot accuracy during training are the same for all.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitkit.analysis import figures, inspect
from vitkit.config import to_json
from vitkit.data import channels, sources, transforms
from vitkit.evaluation.fewshot.config import SEEDS
from vitkit.evaluation.refusal import RefusalRecord
from vitkit.models import measure, vit
from vitkit.models.image_model import ImageModel
from vitkit.report.template import render_page
from vitkit.result import Block, Caption, Photo, Photos, Plot, Plots, Section, Table, Text
from vitkit.tasks import page, task_of
from vitkit.tasks.learning import Learning
from vitkit.tasks.page import refusal_section
from vitkit.text import format_count, format_duration, join_names, pluralize
from vitkit.training import checkpoint, evaluators
from vitkit.weights.model_card import card_of, preprocessing_of, to_give_away

DISTANCE_IMAGES = 128  # as many as the paper (D.7)
REJECTS_SHOWN = 200  # nobody reads more of a data set that is damaged as a whole
LEVELS_SHOWN = 8  # of nested settings: vitkit's have three, and a run that was given away may have thousands
ATTENTION_FLOATS = 1 << 26  # of one layer's attention at a time: 256 MiB


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
    samples: Mapping[str, sources.Samples]
    """Images by split, for the pictures; empty if the data is missing."""
    commands: Sequence[str]
    """Commands that made the run, and the next useful ones."""
    environment: Mapping[str, Any]
    """Versions, machine, threads, date."""
    examples: NDArray[np.uint8] | None = None
    """A picture of the model's predictions, where its task answers nothing."""
    followed: Sequence[Mapping[str, Any]] = ()
    """The lines of metrics.jsonl of other evaluators: `evaluator`, `step` and its metrics."""
    left_out: Sequence[str] = ()
    """Sentences that say which of the run's records could not be read."""
    refusal: RefusalRecord | None = None
    """The images that its model refuses; None where it refuses none."""
    files: Sequence[str] = ()
    """Names of files below the folder of the page that a reader may want to open."""


def render_report(content: ReportContent) -> str:
    """Render the page as HTML.

    Args:
        content: of the page, which names what is missing (validation, evaluation, pictures).

    Returns:
        A whole document, to be written as UTF-8.
    """
    model, data = content.model, content.data
    card, task = to_give_away(card_of(model)), task_of(model.card)
    splits = sorted(content.evaluations, key=lambda split: (split != "test", split != "val", split))
    split = splits[0] if splits else None
    samples = None if split is None else content.samples.get(split)
    if task.answering is not None:
        made = task.answering.report(content.evaluations, split, samples)
    else:
        validations = [line for line in content.metrics if line["kind"] == "validation"]
        made = task.learning.report(content.examples, validations)
    start, weights = card.origin.get("start", {}).get("from"), str(card.origin.get("weights", ""))
    trained = f", trained on {data['name']}" if data.get("name") else ""
    begun = f", begun from {start}" if start else ""
    head: list[Block] = [Caption(f"{model.card.name or 'ViT'}{trained}{begun}"), *made.answer]
    if weights:
        head.append(Caption(f"Weights: {weights.removeprefix('weights ')}."))
    refused = content.refusal
    of_refusal = [] if refused is None else [refusal_section(refused, content.samples.get(refused.split))]
    sections = [*made.sections, *of_refusal, _curves(content, task.learning)]
    sections += fewshot_sections(content.followed, content.config)
    ids = None if split is None else content.evaluations[split][1].ids
    looked_at = _attention(model, samples, made, split)
    title = "What it looks at (the paper's Figure 6)"
    sections.append(Section(title, looked_at, name="attention", menu="Attention"))
    inside, title = _inside(model, samples, ids, split), "Inside the model (the paper's Figure 7)"
    sections.append(Section(title, inside, name="inside", menu="Inside the model"))
    saved = {
        "preprocessing": to_json(card.preprocessing) if card.preprocessing else {},
        "augmentation": to_json(card.augmentation) if card.augmentation else {},
        "origin": card.history(),
    }
    settings: Block = "The run's configuration is not known."
    if rows := _flat(content.config):
        settings = _named(rows, f"The run: {len(rows)} settings")
    saved_with = _named(_flat(saved), "Saved with the model: preprocessing, augmentation, origin")
    made_by: list[Block] = [Text(command, "command") for command in content.commands]
    made_by.append(_named(_flat(content.environment)))
    sections += [
        Section("Configuration", (settings, saved_with), name="configuration", menu="Configuration"),
        Section("Data", tuple(_data(data)), name="data", menu="Data"),
        Section("Commands and environment", made_by, name="environment", menu="Commands"),
    ]
    facts = [*made.facts, *_facts(content)]
    return render_page(content.title, head, sections, facts=facts, files=content.files)


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    """Collect the facts at the head of the page beside the accuracy: a value and its name each."""
    config = content.model.config
    facts = [(format_count(sum(weight.numel() for weight in content.model.parameters())), "parameters")]
    flops = format_count(measure.forward_flops(config, head=True))
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


def _curves(content: ReportContent, learning: Learning) -> Section:
    """Draw the training, as far as it was logged."""
    curve, monitor, progress = learning.curve, learning.monitor, checkpoint.Progress()
    training, validations = (
        [line for line in content.metrics if line["kind"] == kind] for kind in ("train", "validation")
    )
    train = _columns(training, ("step", "epoch", "loss", "learning_rate"))
    names = {"step", "epoch", "loss", monitor.metric, monitor.tie_breaker or monitor.metric}
    validation = _columns(validations, sorted(names))
    objective = content.config.get("objective", {})
    # Options that change the training loss and not the validation loss.
    given = {name: objective[name] for name in ("label_smoothing", "mixup") if objective.get(name)}
    altered = " and ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in given.items())
    blocks: list[Block] = ["No metrics were logged."]
    if len(train["step"]) or len(validation["step"]):
        steps = int(max([*train["step"], *validation["step"]]))
        for row in range(len(validation["step"])):  # as the run itself chose its best step
            numbers = {name: float(column[row]) for name, column in validation.items()}
            progress = evaluators.judge(monitor, numbers, row, progress)
        shape = (monitor.metric, curve.title, curve.label, progress.best_step, curve.is_fraction)
        drawn = figures.training_curves(train, validation, altered, *shape)
        pictures = {"loss": "Loss", "metric": curve.title, "rate": "Learning rate"}

        def plot(figure: Figure, name: str, what: str) -> Plot:
            return Plot(lambda: figure, name, f"{what} over {steps:,} steps of training.")

        but = (
            f", but the training loss is computed with {altered} and the validation loss without: the two "
            "are different quantities, and which of them is lower says nothing"
        )
        caption = (
            "Loss: on training batches, as logged (pale) and as a running mean over a twentieth of the run, "
            f"and on the validation split. {curve.title}: {curve.caption} Learning rate: as used in each "
            "step. Both losses are the mean over the images of the "
            f"{curve.loss or page.LOSS_LABELS[content.model.card.loss]}{but if altered else ''}. Training "
            "images may also be augmented and dropout be on, so the two losses need not meet; a validation "
            "loss that rises while the training loss falls means overfitting."
        )
        blocks = [Plots(tuple(map(plot, drawn, pictures, pictures.values()))), Caption(caption)]
        if not len(validation["step"]):
            blocks.append("This run has no validation.")
    blocks += [Text(sentence, "warning") for sentence in content.left_out]
    return Section("Training curves", blocks, name="curves", menu="Curves")


def _attention(
    model: ImageModel, samples: sources.Samples | None, made: page.TaskReport, split: str | None
) -> list[Block]:
    """Show where the model looks on some of the images that its task has chosen."""
    if not inspect.has_attention_maps(model):
        return ["This model has no attention between all its places that could be laid over an image."]
    if not made.attention.images:
        return [made.attention.none]
    photos = [] if samples is None else rollouts(model, samples, made)
    if not photos:
        return [f"{page.NOT_AT_HAND}, so there is nothing to lay attention over."]
    caption = (
        f"Attention rollout over {split} images, as the model sees them: attention averaged over heads, the "
        "identity added for the residual connections, rows scaled to sum to one, and the layers' matrices "
        "multiplied; shown is what the output gathers from each patch (paper D.8). Yellow: most, dark blue: "
        "least, in each image by itself, so that colours of two images cannot be compared. "
        f"{made.attention.caption} It shows where information flows from, not why the model decides."
    )
    return [Photos(lambda: photos), Caption(caption)]


def _inside(
    model: ImageModel, samples: sources.Samples | None, ids: NDArray[np.int64] | None, split: str | None
) -> list[Block]:
    """Draw the three panels of the paper's Figure 7, as far as the model has them."""
    blocks: list[Block] = [Text("Filters that see the pixels", "heading")]
    if model.config.in_channels in (1, 3) and model.config.width > 1:
        components, explained = inspect.patch_filters(model)
        alt = f"The first {len(components)} principal components of the filters that see the pixels."
        draw = partial(figures.filter_grid, components, explained)
        blocks += [Plot(draw, "filters", alt, coloured=True)]
    else:
        blocks.append("This model has no linear patch embedding of colour images to show.")
    blocks.append(Text("Similarity of position embeddings", "heading"))
    similarity = inspect.position_similarity(model)
    if similarity is not None:
        alt = "For every patch, the similarity of its position embedding with all others."
        draw = partial(figures.position_similarity_map, similarity)
        blocks += [Plot(draw, "positions", alt, coloured=True)]
    else:
        blocks.append("This model learns no position embeddings.")
    blocks.append(Text("Attention distance", "heading"))
    if not inspect.has_attention_maps(model):
        return [*blocks, "This model has no attention between all its places."]
    images: list[NDArray[np.uint8]] = []
    if samples is not None and ids is not None:
        spread = np.linspace(0, len(ids) - 1, min(len(ids), DISTANCE_IMAGES)).round().astype(int)
        images = list(model_images(model, samples, ids[spread].tolist(), DISTANCE_IMAGES).values())
    if not images:
        return [*blocks, "There were no images at hand to measure attention on."]
    measured = inspect.attention_distance(model, _batch(images), attention_batch(model))
    height, width = model.config.image_size
    shown = f"{len(images)} {split} image{'s' * (len(images) != 1)} of {height} x {width} pixels"
    draw = partial(figures.attention_distance_plot, measured, inspect.even_attention_distance(model), shown)
    alt = f"Mean attention distance of every head by layer, {shown}."
    return [*blocks, Plot(draw, "distances", alt)]


def _data(data: Mapping[str, Any]) -> Iterator[Block]:
    """Describe the images: their place, their notes, the classes, and what could not be read."""
    described = [str(data[key]) for key in ("name", "kind", "spec") if data.get(key)]
    if described:
        yield ", ".join(described)
    if data.get("fingerprint"):
        yield Caption(f"fingerprint {data['fingerprint']}")
    yield from data.get("notes", [])
    counts = data.get("counts", {})
    names = list(data.get("class_names", ())) or sorted({name for split in counts.values() for name in split})
    if counts:
        images = data.get("images", {})  # an image with several labels counts once
        sums = {split: images.get(split, sum(of_class.values())) for split, of_class in counts.items()}
        splits = list(counts.values())
        rows = tuple((name, *(page.count_cell(split.get(name, 0)) for split in splits)) for name in names)
        yield Table(("class", *(f"{split} images" for split in counts)), rows, sortable=True)
        yield "All: " + ", ".join(f"{count:,} {split} images" for split, count in sums.items()) + "."
    by_split = data.get("rejects", {}).items()
    rejects = [(split, key, reason) for split, files in by_split for key, reason in files.items()]
    if not rejects:
        yield "No file was rejected."
        return
    yield Text(f"{pluralize(len(rejects), 'file')} could not be read:", "warning")
    yield Table(("split", "file", "reason"), tuple(rejects[:REJECTS_SHOWN]))
    if len(rejects) > REJECTS_SHOWN:
        yield f"And {len(rejects) - REJECTS_SHOWN:,} more."


def _columns(lines: Iterable[Mapping[str, Any]], names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Collect numbers by the step, as arrays; NaN, which plots leave out, stands for one that is none."""
    of_step = {line["step"]: line for line in lines}
    logged = ([of_step[step].get(name) for name in names] for step in sorted(of_step))
    numbers = [[value if isinstance(value, int | float) else math.nan for value in row] for row in logged]
    table = np.array(numbers, np.float64)
    table[~np.isfinite(table)] = math.nan
    return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))


def _named(rows: Sequence[tuple[str, str]], folded: str = "") -> Table:
    return Table(("name", "value"), tuple(rows), folded=folded)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Turn nested plain data into rows: name with dots, value as it is or as JSON."""
    rows = []
    for key, value in nested.items():
        if isinstance(value, Mapping) and prefix.count(".") < LEVELS_SHOWN:
            rows += _flat(value, f"{prefix}{key}.")
            continue
        try:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        except RecursionError:
            shown = "(nested too deep to be shown)"
        rows.append((f"{prefix}{key}", shown))
    return rows


def rollouts(model: vit.ViT, samples: sources.Samples, made: page.TaskReport) -> list[Photo]:
    """Show images of a task's choice, and beside each where the model looks.

    Args:
        model: with attention between all tokens.
        samples: the images.
        made: the task's part of the report.
    """
    chosen = {shown.index: shown for shown in made.attention.images}
    images = model_images(model, samples, list(chosen), page.ATTENTION_SHOWN)
    size, pixels = attention_batch(model), list(images.values())
    batches = (_batch(pixels[first : first + size]) for first in range(0, len(pixels), size))
    maps = [inspect.attention_rollout(model, batch) for batch in batches]
    photos = []
    for (index, image), heat in zip(images.items(), (heat for part in maps for heat in part), strict=True):
        large = figures.enlarged(channels.to_rgb(image), page.THUMBNAIL)
        beside = figures.image_data_uri(page.shrunk(figures.heat_overlay(large, heat)))
        photos.append(page.photo_of(samples, chosen[index], large, beside))
    return photos


def model_images(
    model: ImageModel, samples: sources.Samples, indices: Sequence[int], count: int
) -> dict[int, NDArray[np.uint8]]:
    """Read the first `count` readable images of `indices`, `(H, W, C)` as the model sees them, by index."""
    preprocessing, images = preprocessing_of(model), dict[int, NDArray[np.uint8]]()
    for index in indices:
        image = page.decode(samples, index)
        if image is not None:
            images[index] = transforms.preprocess(image, preprocessing)
        if len(images) == count:
            break
    return images


def _batch(images: Sequence[NDArray[np.uint8]]) -> torch.Tensor:
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def attention_batch(model: vit.ViT) -> int:
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
        measured = [line for line in followed if line.get("evaluator") == evaluator]
        keys = dict.fromkeys(key for line in measured for key in line)
        names = [name for name in keys if name.endswith(("_shots", "_all"))]
        if not names:
            continue
        columns = _columns(measured, ("step", *names))
        steps = columns.pop("step").astype(int).tolist()
        curves = {_label(name): accuracies.tolist() for name, accuracies in columns.items()}
        measurements = zip(steps, zip(*curves.values(), strict=True), strict=True)
        rows = tuple((page.count_cell(step), *map(page.fraction_cell, row)) for step, row in measurements)
        last = ", ".join(f"{name} {accuracies[-1]:.1%}" for name, accuracies in curves.items())
        alt = f"Few-shot accuracy over {len(steps)} measurements; at step {steps[-1]:,}: {last}."
        draws = 1 if names[0].endswith("_all") else SEEDS
        ways = dict.fromkeys(figures.METHOD_NAMES.get(name.partition("_")[0], name) for name in names)
        caption = (
            f"By {join_names(list(ways))} on the model's features at that step, with the same images of each "
            f"class at every step; mean of {pluralize(draws, 'draw')}. It decided nothing in the training."
        )
        draw = partial(figures.tracking_plot, steps, curves, images)
        blocks = (Plot(draw, evaluator, alt), Caption(caption), Table(("step", *curves), rows, sortable=True))
        yield Section("Few-shot accuracy while it was trained", blocks, name=evaluator, menu="Few-shot")


def _label(name: str) -> str:
    """Turn "ridge_5_shots" into "5 shots", "knn_5_shots" into "5 shots, knn", "logistic_all" into "linear
    probe"."""
    method, shots = name.split("_")[:2]
    if shots == "all":
        return "linear probe" if method == "logistic" else f"all images, {method}"
    label = "1 shot" if shots == "1" else f"{shots} shots"
    return label if method == "ridge" else f"{label}, {method}"
