"""The section of the report on few-shot accuracy that was measured while a model was trained."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from vitkit.analysis.fewshot_figure import tracking_plot
from vitkit.tasks.page import Number, Plot, Section, Table, Text, fraction_cell


def fewshot_sections(followed: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> Iterator[Section]:
    """Make a section of the page for each evaluator that measured it.

    Args:
        followed: the lines of evaluators in metrics.jsonl. Among lines of the same step the last one counts.
        config: of the run, as nested plain data.
    """
    for evaluator in dict.fromkeys(str(line.get("evaluator")) for line in followed):
        measured = {line["step"]: line for line in followed if line.get("evaluator") == evaluator}
        lines = [measured[step] for step in sorted(measured)]
        keys = dict.fromkeys(key for line in lines for key in line)
        names = [name for name in keys if name.endswith("_shots")]
        if names:
            # Runs of the time before evaluators were a mapping hold the options of this one at the top.
            options = config.get("evaluators", config).get(evaluator, {})
            yield _section(evaluator, lines, names, options)


def _section(
    evaluator: str, lines: Sequence[Mapping[str, Any]], names: Sequence[str], options: Mapping[str, Any]
) -> Section:
    images = PurePath(str(options.get("data", ""))).name or "other images"
    shares = {_label(name): [_share(line.get(name)) for line in lines] for name in names}
    steps = [int(line["step"]) for line in lines]
    rows = tuple(
        (Number(f"{step:,}", step), *(_cell(one[i]) for one in shares.values()))
        for i, step in enumerate(steps)
    )
    last = ", ".join(f"{name} {one[-1]:.1%}" for name, one in shares.items())
    alt = f"Few-shot accuracy over {len(steps)} measurements; at step {steps[-1]:,}: {last}."
    draws = options.get("seeds", 1)
    return Section(
        evaluator,
        "Few-shot",
        "Few-shot accuracy while it was trained",
        (
            Plot(tracking_plot(steps, shares, images), evaluator, alt),
            Text(
                "Least squares in closed form (the paper's few-shot accuracy) on the features of the model "
                f"as it was, with the same images of each class at every step; the mean of {draws} "
                f"draw{'s' * (draws != 1)}. It decided nothing in the training.",
                "caption",
            ),
            Table(("step", *shares), rows, sortable=True),
        ),
    )


def _label(name: str) -> str:
    """Turn "ridge_5_shots" into "5 shots"."""
    shots = name.split("_")[1]
    return "1 shot" if shots == "1" else f"{shots} shots"


def _cell(share: float) -> Number:
    return fraction_cell(None if math.isnan(share) else share)


def _share(value: object) -> float:
    """Return a fraction as it was logged; NaN where there is none."""
    return float(value) if isinstance(value, int | float) else math.nan
