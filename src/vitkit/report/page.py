"""One page about a run: how good the model is, where it fails, what it looks at, and how it was made.

The page is a single file that needs no network and no program but a browser. File and class names come from
outside: the template escapes everything but our own figures, and the page's content security policy runs no
script but the one that sorts tables.
"""

import base64
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from markupsafe import Markup
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitkit.analysis import cost, drawing, figures, inspect, model_figures
from vitkit.config import to_json
from vitkit.data.sources import Samples
from vitkit.evaluation.classify import Classification, ClassScore, Predictions
from vitkit.models.card import LossFunction
from vitkit.models.image_model import ImageModel
from vitkit.report.pictures import (
    ShownEvaluation,
    attention_batch,
    mistakes,
    model_images,
    rollouts,
)
from vitkit.weights.card import card_of

DISTANCE_IMAGES = 128  # as many as the paper (D.7)
REJECTS_SHOWN = 200
TIES_SHOWN = 3
LEVELS_SHOWN = 8

SORT_SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = row => row.cells[column].textContent;
      const number = row => Number(row.cells[column].dataset.value);
      const rows = [...table.tBodies[0].rows].sort((one, other) =>
        number(one) - number(other) || text(one).localeCompare(text(other), undefined, {numeric: true}));
      table.tBodies[0].append(...(down ? rows.reverse() : rows));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(part => part.open = true));
"""


@dataclass(frozen=True)
class ReportContent:
    """All that the page is made from."""

    title: str
    """The run's name."""
    model: ImageModel
    """Loaded, on the CPU, with its card."""
    config: Mapping[str, Any]
    """The run's configuration as nested plain data."""
    data: Mapping[str, Any]
    """`name`, `spec`, `kind`, `class_names`, `counts` {split: {class: images}}, `notes`, `rejects`
    {split: {key: reason}}, `fingerprint`; all may be missing."""
    metrics: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl: `kind` "train" or "validation", `step`, `epoch`, `loss`, and
    `learning_rate` or `accuracy`. Of lines of the same step the last counts."""
    speed: Sequence[Mapping[str, Any]]
    """`step`, `images_per_second`, `seconds` (since training was started or resumed), `memory_bytes`."""
    evaluations: Mapping[str, tuple[Classification, Predictions]]
    """By split: "test", "val"."""
    samples: Mapping[str, Samples]
    """By split, to show pictures; empty if the data is not at hand."""
    commands: Sequence[str]
    """Those that made the run, and the next useful ones."""
    environment: Mapping[str, str]
    """Versions, machine, threads, date."""
    left_out: Sequence[str] = ()
    """Sentences on what of the run's records could not be read."""


@dataclass(frozen=True)
class _Plot:
    svg: Markup
    alt: str


def render_report(content: ReportContent, progress: Callable[[str], None] | None = None) -> str:
    """Render the page as HTML.

    Args:
        content: what to tell. Whatever is missing (validation, evaluation, pictures) is said to be missing.
        progress: called with the name of each part before it is made.

    Returns:
        A whole document, to be written as UTF-8.
    """
    say = progress or (lambda part: None)
    model, card = content.model, card_of(content.model)
    evaluation = _evaluation(content)
    say("training curves")
    page: dict[str, Any] = {
        "title": content.title,
        "model_name": model.card.name or "ViT",
        "evaluation": evaluation,
        "evaluations": {split: result for split, (result, _) in content.evaluations.items()},
        "facts": _facts(content),
        "curves": _curves(content.metrics, model.card.loss, _altered(content.config)),
        "altered": _altered(content.config),
        "loss": figures.LOSS_LABELS[model.card.loss],
        "losses": figures.LOSS_LABELS,
        "weights": card.origin.get("weights"),
        "left_out": content.left_out,
        "has_validation": any(line["kind"] == "validation" for line in content.metrics),
        "configuration": _flat(content.config),
        "card": _flat(
            {
                "preprocessing": to_json(card.preprocessing) if card.preprocessing else {},
                "augmentation": to_json(card.augmentation) if card.augmentation else {},
                "origin": card.history(),
            }
        ),
        "data": content.data,
        "class_counts": _class_counts(content.data),
        "rejects": _rejects(content.data),
        "rejects_shown": REJECTS_SHOWN,
        "commands": content.commands,
        "environment": content.environment,
    }
    if evaluation is not None:
        say("results")
        page |= _results(evaluation)
        say("pictures of mistakes")
        page["mistakes"] = mistakes(evaluation)
        say("attention rollout")
        page["rollouts"] = rollouts(model, evaluation) if inspect.has_attention_maps(model) else []
    say("filters, positions and attention distance")
    page["attention_maps"] = inspect.has_attention_maps(model)
    page |= _inside(model, evaluation)
    return _fill(page)


def _fill(page: Mapping[str, Any]) -> str:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "percent": _percent,
        "count": lambda number: f"{number:,}",
        "sort_value": lambda share: -1.0 if share is None else round(share, 6),
    }
    template = environment.from_string(
        Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8"),
    )
    digest = base64.b64encode(hashlib.sha256(SORT_SCRIPT.encode()).digest()).decode()
    html = template.render(page, script=Markup(SORT_SCRIPT), script_digest=digest)
    # File names need not be valid text: what cannot be written as UTF-8 is shown as a question mark.
    return html.encode("utf-8", "replace").decode("utf-8")


def _evaluation(content: ReportContent) -> ShownEvaluation | None:
    """Choose the evaluation to report: of the test split, else of validation, else of any split."""
    splits = sorted(content.evaluations, key=lambda split: (split != "test", split != "val", split))
    if not splits:
        return None
    return ShownEvaluation(splits[0], *content.evaluations[splits[0]], content.samples.get(splits[0]))


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    """Collect the facts that stand at the head of the page beside the accuracy."""
    config = content.model.config
    facts = [("parameters", _short(sum(weight.numel() for weight in content.model.parameters())))]
    flops = _short(cost.forward_flops(config, head=True))
    facts.append((f"FLOPs for an image of {config.image_size[0]} × {config.image_size[1]}", flops))
    if content.speed:
        rates = sorted(line["images_per_second"] for line in content.speed)
        facts.append(("training time", _duration(_training_seconds(content.speed))))
        facts.append(("training images per second", f"{rates[len(rates) // 2]:,.0f}"))
        memory = max(line.get("memory_bytes") or 0 for line in content.speed)
        if memory:
            facts.append(("memory at most", f"{memory / 2**30:.1f} GiB"))
    return facts


def _training_seconds(speed: Sequence[Mapping[str, Any]]) -> float:
    """Add up the seconds of all sessions; where the clock goes back, a run was resumed."""
    clock = [float(line["seconds"]) for line in speed]
    return sum(now for now, later in zip(clock, [*clock[1:], -1.0], strict=True) if later < now)


def _curves(metrics: Sequence[Mapping[str, Any]], loss_function: LossFunction, altered: str) -> _Plot | None:
    train = _columns(metrics, "train", ("step", "epoch", "loss", "learning_rate"))
    validation = _columns(metrics, "validation", ("step", "epoch", "loss", "accuracy"))
    if not len(train["step"]) and not len(validation["step"]):
        return None
    steps = int(max([*train["step"], *validation["step"]]))
    alt = f"Loss, validation accuracy and learning rate over {steps} steps of training."
    return _plot(figures.training_curves(train, validation, loss_function, altered), "curves", alt)


def _altered(config: Mapping[str, Any]) -> str:
    """Name what the training loss is computed with and the validation loss is not."""
    objective = config.get("objective", {})
    words = [
        f"{name.replace('_', ' ')} {objective[name]:g}"
        for name in ("label_smoothing", "mixup")
        if objective.get(name)
    ]
    return " and ".join(words)


def _results(evaluation: ShownEvaluation) -> dict[str, Any]:
    result, images = evaluation.result, evaluation.images
    names = result.class_names
    confidence = math.fsum(b.count * (b.confidence or 0) for b in result.calibration) / result.count
    low, high = result.accuracy_interval
    return {
        # Few images say little about the accuracy: what their interval allows is no finding.
        "too_sure": confidence > high,
        "not_sure_enough": confidence < low,
        "guessing": max(score.count for score in result.per_class) / result.count,
        "confidence": confidence,
        "confusion": _plot(
            figures.confusion_matrix(result.confusion_cells, names, images),
            "confusion",
            f"Confusion matrix of {len(names)} classes on {images}.",
        ),
        "class_accuracy": _plot(
            figures.class_accuracy(result.per_class, images), "classes", f"Accuracy by class on {images}."
        ),
        "classes": _class_rows(result),
        "reliability": _plot(
            figures.reliability_diagram(result.calibration, images),
            "calibration",
            f"Accuracy against confidence on {images}.",
        ),
    }


def _class_rows(result: Classification) -> list[tuple[ClassScore, str]]:
    """List every class with the class it is most often taken for; all of them where several tie."""
    taken_for: dict[int, tuple[int, list[int]]] = {}
    for true, predicted, count in result.confusion_cells:
        most, _ = taken_for.get(true, (1, []))
        if true != predicted and count >= most:
            others = taken_for[true][1] if true in taken_for and count == most else []
            taken_for[true] = count, [*others, predicted]
    names = result.class_names
    rows = []
    for i, score in enumerate(result.per_class):
        count, others = taken_for.get(i, (0, []))
        listed = ", ".join(names[other] for other in others[:TIES_SHOWN])
        more = f" and {len(others) - TIES_SHOWN} more" if len(others) > TIES_SHOWN else ""
        each = " each" if len(others) > 1 else ""
        rows.append((score, f"{listed}{more} ({count}{each})" if others else ""))
    return rows


def _inside(model: ImageModel, evaluation: ShownEvaluation | None) -> dict[str, Any]:
    """Draw the three panels of the paper's Figure 7, as far as the model has them."""
    filters = positions = distances = None
    if model.config.in_channels in (1, 3) and model.config.width > 1:
        components, shares = inspect.patch_filters(model)
        alt = f"The first {len(components)} principal components of the filters that see the pixels."
        filters = _plot(model_figures.filter_grid(components, shares), "filters", alt)
    similarity = inspect.position_similarity(model)
    if similarity is not None:
        alt = "For every patch, the similarity of its position embedding with all others."
        positions = _plot(model_figures.position_similarity_map(similarity), "positions", alt)
    if evaluation is not None and inspect.has_attention_maps(model):
        total = len(evaluation.predictions)
        spread = np.linspace(0, total - 1, min(total, DISTANCE_IMAGES)).round().astype(int).tolist()
        rows, images = model_images(model, evaluation, spread, DISTANCE_IMAGES)
        if rows:
            pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
            measured = inspect.attention_distance(model, pixels, attention_batch(model))
            height, width = model.config.image_size
            data = (
                f"{len(rows)} {evaluation.split} image{'s' * (len(rows) != 1)} of {height} x {width} pixels"
            )
            figure = model_figures.attention_distance_plot(
                measured, inspect.even_attention_distance(model), data
            )
            alt = f"Mean attention distance of every head by layer, {data}."
            distances = _plot(figure, "distances", alt)
    return {"filters": filters, "positions": positions, "distances": distances}


def _plot(figure: Figure, name: str, alt: str) -> _Plot:
    return _Plot(Markup(drawing.figure_svg(figure, name)), alt)


def _columns(
    metrics: Sequence[Mapping[str, Any]], kind: str, names: Sequence[str]
) -> dict[str, NDArray[np.float64]]:
    lines = {line["step"]: line for line in metrics if line["kind"] == kind}
    table = np.array(
        [[_finite(lines[step].get(name)) for name in names] for step in sorted(lines)], np.float64
    )
    return dict(zip(names, table.reshape(-1, len(names)).T, strict=True))


def _finite(value: Any) -> float:
    """Return a number that can be drawn; NaN, which plots leave out, for one that cannot."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _class_counts(data: Mapping[str, Any]) -> list[tuple[str, list[int]]]:
    """Images of every class in every split, and their sums."""
    counts = data.get("counts", {})
    names = list(data.get("class_names", ())) or sorted({name for split in counts.values() for name in split})
    rows = [(name, [split.get(name, 0) for split in counts.values()]) for name in names]
    return [*rows, ("all", [sum(split.values()) for split in counts.values()])] if counts else []


def _rejects(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (split, key, reason)
        for split, files in data.get("rejects", {}).items()
        for key, reason in files.items()
    ]


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested plain data as rows: name with dots, value."""
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


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f}%"


def _short(number: float) -> str:
    """Three digits and a letter: 85.8 M."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {letter}"
    return f"{number:.3g}"


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), seconds / 3600
    if seconds < 120:
        return f"{seconds:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    return f"{hours:.1f} h" if hours < 48 else f"{hours / 24:.1f} days"
