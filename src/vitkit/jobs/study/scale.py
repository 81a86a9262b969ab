"""Fit a law of scale: test error falls with data, steps or size; predict what three times more would bring.

STUDY/study.json    the points, and the steps that fit into the budget, written before the first begins
STUDY/data-01/...   the series of runs of each point, the smallest first
STUDY/report.html   the result, which follows from the runs

The law predicts the error of the held-out point, and the prediction is said, before that point is trained.

The test images are the same at every point, and so are the validation images, by which each run takes its
best weights, as the paper does with early stopping (Figure 4). Along data every point makes the same number
of updates: with the same number of passes, thirty times fewer images would also be thirty times fewer
updates, the law would mix data with training time, and a budget could not plan steps. `hold="epochs"` holds
the passes instead. Along steps each point is a training of its own whose schedule ends with it: a longer run
broken off early has not lowered its learning rate yet (Hoffmann et al. 2022, "Training Compute-Optimal Large
Language Models", section 3.1). Along size, width and depth grow together, and x is the FLOPs of training:
the number of parameters does not depend on the number of tokens, and a larger model is compared by its cost
(Figure 5).
"""

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack

import numpy as np

from vitkit.config import COUNT, Range, to_json
from vitkit.data.check import sample_sizes, suggest_recipe
from vitkit.errors import VitkitError
from vitkit.evaluation.statistics import NORMAL_95, LawFit, Point, Prediction, fit_power_law, judge_held_out
from vitkit.jobs import finetune, recipes
from vitkit.jobs.options import Axis, MachineOptions, Recipe, StrPath, StudyOptions
from vitkit.jobs.study import study as studies
from vitkit.listener import Listener
from vitkit.models import measure, zoo
from vitkit.result import Plot, Section, Table
from vitkit.runs import budget, series_record, trained_model
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.folder import numbered_folders
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, describe_start, list_images, with_absolute_paths
from vitkit.tasks import find_task
from vitkit.tasks.page import figures
from vitkit.text import format_count, format_duration, join_names, pluralize

AXES: dict[Axis, tuple[str, str]] = {
    "data": ("training images", "as many images"),
    "steps": ("steps", "as many steps"),
    "size": ("FLOPs of training", "the FLOPs, in a larger model,"),
}
"""For each axis its label, and the noun of "three times ..."."""


@dataclass(frozen=True)
class Measured:
    """A point of the study, and its test errors."""

    label: str
    folder: str
    x: float
    point: Point | None
    """None where training diverged with every seed."""
    diverged: int
    """Seeds with which it diverged."""


@dataclass(frozen=True, repr=False)
class Scale(studies.StudyResult):
    """A law of scale: its points, its prediction, and the error of the held-out point."""

    data: str
    model: str
    along: Axis
    hold: Literal["steps", "epochs"]
    metric: str
    is_fraction: bool
    """Whether errors are 1 minus a fraction, such as accuracy; else they are a loss."""
    steps: int
    """Updates of the held-out point."""
    measured: tuple[Measured, ...]
    """The points that the law was fitted to."""
    held_out: Measured
    fit: LawFit
    prediction: Prediction
    """The prediction at the held-out point, made before it was trained."""
    final: LawFit | None
    """The law fitted to all points, the held-out one too; None where that diverged."""
    objection: str
    """The reason why the law does not hold; "" where it does."""
    beyond: Prediction | None
    """The error at three times the held-out point; None where the law does not hold."""

    def heading(self) -> str:
        """Name the metric, the model, the axis and the data."""
        measured = f"{self.metric.replace('_', ' ')} of {self.model}".removesuffix(" of ")
        return f"Scale: {measured} against {AXES[self.along][0]} on {Path(self.data).name}"

    def sections(self) -> Sequence[Section]:
        """Return the points, the law, and what was equal at all points."""
        plot = Plot(self._draw, "law", " ".join(self.headline()))
        return (Section("Points", (self.points(), plot, *self.remarks())),)

    def headline(self) -> list[str]:
        """Conclude from the held-out point, and from the extrapolation or the objection to it."""
        label, more = AXES[self.along]
        metric = self.metric.replace("_", " ")
        low, high = (format_count(place.x) for place in (self.measured[0], self.measured[-1]))
        what = "error" if self.is_fraction else metric
        sentences = [f"From {low} to {high} {label} the {what} is {self.fit.law.describe()}."]
        point, prediction = self.held_out.point, self.prediction
        where = (
            f"At {self.held_out.label}, three times beyond, the law predicted {self.shown(prediction.error)} "
            f"({self.interval(prediction)} if it holds); "
        )
        if point is None:
            sentences.append(f"{where}training diverged.")
        else:
            side = "inside" if prediction.holds(point.error) else "OUTSIDE of"
            sentences.append(f"{where}{self.shown(point.error)} {metric} came out, {side} the interval.")
        if self.objection:
            sentences.append(
                f"The law does not hold here: {self.objection}. Nothing is said about three times {more}."
            )
        if self.beyond is not None and self.final is not None and point is not None:
            ends = "from no further gain to one as fast as through the last points"
            expected = f"about {self.shown(self.beyond.error)} {metric} by the law"
            if not self.final.falls_at_last:
                ends, expected = "the last points show no gain", f"{self.shown(point.error)} {metric} as now"
            sentences.append(
                f"EXTRAPOLATION: three times {more} would reach {expected} "
                f"({self.interval(self.beyond)}: {ends})."
            )
        return sentences

    def points(self) -> Table:
        """Make the table of the points: x, the measured scores, and the law's."""
        rows = []
        for place in (*self.measured, self.held_out):
            mean, seeds, remark, law = "–", "–", "diverged", self.shown(self.fit.law.at(place.x))
            if place.point is not None:
                mean, remark = self.shown(place.point.error), ""
                seeds = ", ".join(map(self.shown, place.point.errors))
            if place is self.held_out:
                law, remark = f"{law} ({self.interval(self.prediction)})", remark or "held out"
            rows.append((place.label, mean, seeds, law, remark))
        headings = (AXES[self.along][0], f"{self.metric.replace('_', ' ')} on test images")
        return Table((*headings, "each seed", "the law", "remark"), tuple(rows), left=(0, -1))

    def remarks(self) -> list[str]:
        """Explain what was equal at all points, what the intervals cover, and which runs diverged."""
        equal = {
            "data": "Every point made the same number of updates and was validated equally often, on the "
            "same images: with equal passes, fewer images would also mean fewer updates.",
            "steps": "Every point is a training of its own, whose learning rate ends with it.",
            "size": "Width and depth grow together, and the steps stay the same.",
        }[self.along]
        if self.hold == "epochs":
            equal = "Every point made the same number of passes: fewer images also mean fewer updates."
        sentences = [
            equal,
            "At every point the best weights by validation are tested, on the same test images; the "
            "intervals are for these images, and not for others.",
        ]
        if self.fit.residuals <= 2:
            sentences.append(
                "Five points leave two residuals to estimate the noise by: more --points or --seeds narrow "
                "the interval."
            )
        for place in (*self.measured, self.held_out):
            if place.diverged:
                runs = pluralize(place.diverged, "run")
                sentences.append(f"{place.label}: training diverged in {runs}, left out.")
        return sentences

    def _draw(self) -> Any:
        """Draw the points, the law with its interval, the held-out point and three times beyond."""
        first, last = self.measured[0].x, self.held_out.x
        band = [self.fit.predict(x) for x in np.geomspace(first, last, 40).tolist()]
        beyond: list[Prediction] = []
        if self.beyond is not None and self.final is not None:
            beyond = [self.final.extrapolate(x) for x in np.geomspace(last, self.beyond.x, 12).tolist()]
        up = f"test error (1 - {self.metric.replace('_', ' ')})" if self.is_fraction else self.metric
        axes = AXES[self.along][0], up, self.is_fraction
        return figures().scale_plot(self.fit.points, band, self.held_out.point, beyond, *axes)

    def shown(self, error: float) -> str:
        """Write an error as the metric: of a fraction such as accuracy, the percentage that is right."""
        return f"{1 - error:.1%}" if self.is_fraction else f"{error:.4g}"

    def interval(self, prediction: Prediction) -> str:
        """Write the interval of a prediction, from its lower to its upper end."""
        low, high = sorted((prediction.low, prediction.high), reverse=self.is_fraction)
        return f"95 % interval {self.shown(low)} to {self.shown(high)}"


KIND = "scale"
SPAN = 10**1.5
"""The largest fitted x over the smallest. `benchmarks/power_law.py` simulates how often the interval of a
prediction holds the error, for this factor and for `BEYOND`."""
BEYOND = 3.0
"""The held-out x over the largest fitted one, and the x of the extrapolation over the held-out one."""
FEWEST_STEPS = 10
"""The fewest updates that a budget may choose: along steps those of the shortest point, else those of the
held-out one. Fewer are no training."""


FEWEST_POINTS, MOST_POINTS = 5, 30
"""A law has three numbers, and five points leave two residuals; beyond thirty, neighbouring points are nearly
the same."""
_SECONDS_OF = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


@dataclass(frozen=True)
class Design:
    """The options that decide the points of a study, as its record has them."""

    along: Axis = "data"
    points: int = 6
    seeds: int = 1
    hold: Literal["steps", "epochs"] = "steps"
    budget: str | None = None
    steps: Annotated[int, Range("a number of steps", 1, COUNT)] | None = None
    """Updates of the held-out point, which the clock chooses once; None without a budget."""

    def __post_init__(self) -> None:
        if not FEWEST_POINTS <= self.points <= MOST_POINTS:
            raise VitkitError(f"points is from {FEWEST_POINTS} to {MOST_POINTS}, found {self.points}.")
        if self.hold != "steps" and self.along != "data":
            raise VitkitError("hold epochs is for --along data: leave it out.")
        studies.arm_series(self.seeds)  # for its error, before anything is measured
        _ = self.budget_seconds  # and for its

    @property
    def budget_seconds(self) -> float | None:
        """Return the time for all points in seconds; None where it is not limited.

        Raises:
            VitkitError: it is no time above 0.
        """
        if self.budget is None:
            return None
        seconds = sum(float(number) * _SECONDS_OF[unit] for number, unit in _TIME.findall(self.budget))
        if _TIME.sub("", self.budget).strip() or not seconds > 0:
            raise VitkitError(f"budget is a time such as 45m, 2h or 1h30m, found {self.budget!r}.")
        return seconds


def scale(
    data: StrPath,
    *,
    recipe: Recipe = "",
    along: Axis = "data",
    points: int = 6,
    seeds: int = 1,
    hold: Literal["steps", "epochs"] = "steps",
    budget: str | None = None,
    start: StrPath = "",
    out: StrPath | None = None,
    plan: bool = False,
    command: str = "vitkit.scale(...)",
    **machine: Unpack[MachineOptions],
) -> Scale | studies.StudyPlan:
    """Say what three times more images, steps or size would buy, on your images: vitkit scale DATA.

    Points over a factor of 30 are trained and a power law is fitted to their test errors; a point three times
    beyond is predicted, then trained and compared. Stopped anywhere, the same command goes on. Every other
    option is one of vitkit train (vitkit train --help-all), laid over the recipe at all points.

    Args:
        data: images, as for vitkit train: digits (built in), a folder of class folders, a .csv, .parquet.
        recipe: recipe of each point, as vitkit recipes lists them; left out, the recipe that vitkit data
            check proposes for these images. From Python also a Run.
        along: quantity that grows from point to point. data: the training images; the law is fitted on a
            third of them at most, and its prediction tested on all. steps: the updates of the weights, each
            point a complete training of its own. size: width and depth of the model, in constant proportion,
            against the FLOPs of its training.
        points: points that the law is fitted to, over a factor of 30 and by equal factors; another point,
            three times beyond the last, is predicted and then trained.
        seeds: runs at each point, with seeds that follow one another from --seed.
        hold: length of training that is equal at all points along data: the updates of the weights, or the
            passes over the images, with which few images also mean few updates.
        budget: time for all points together, as in 45m, 2h or 1h30m: the speed is measured first, and chooses
            the number of steps once and for all. Left out, the length of the recipe.
        start: weights that each point begins from, as for vitkit train --start; left out, new ones.
        out: folder for the runs and the result; left out, runs/DATA-MODEL-scale-AXIS, where the same command
            again goes on.
        plan: list what is trained and the time it takes here, and train nothing.
        command: continues the study; its record has it.
        machine: what trains, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Returns:
        The law, the prediction and the measured error; the page is `report.html` in its folder. With `plan`
        the runs and their time.

    Raises:
        VitkitError: the images, the options or the machine do not allow it, the budget is too small, or `out`
            holds something else.
        InterruptedTraining: a signal stopped it; the same call continues.

    Unstable: its parameters and what it returns may change in any release.
    """
    design, options = Design(along, points, seeds, hold, budget), StudyOptions(command=command, **machine)
    listener = options.listener
    refuse_start(along, start)
    run = base_run(data, recipe, start, listener)
    opened = _open_images(run, design, options)
    default = numbered_folders(opened.images.name, run.model, f"-scale-{along}")
    place = next(default) if out is None else Path(out)
    begun = None if plan else studies.read_chosen(Design, place, KIND)
    steps = run.training.total_steps(len(opened.images.splits["train"]))
    if begun is not None:  # it was measured and checked then
        steps = begun.steps or steps
    else:
        steps, expected = _plan(design, options, opened, steps)
        if plan:
            return expected
        listener.note(expected.summary())
    places, arms = _make_points(design, opened, steps)
    design = replace(design, steps=None if budget is None else steps)
    study = studies.new_study(KIND, command, to_json(design), arms)
    with study.claim(place) as folder:
        *fitted, last = study.arms
        measured = list(map(_measure, places, fitted, studies.complete_arms(fitted, folder, options)))
        point = Measured(last.label, last.folder, places[-1], None, 0)
        law = conclude(folder, last.run, design, [*measured, point])
        said = f"{law.shown(law.prediction.error)} ({law.interval(law.prediction)})"
        listener.note(f"The law predicts {said} for the held-out point, which is trained next.")
        # That it diverges is a result too: the law is then said not to hold.
        (series,) = studies.complete_arms([last], folder, options, "the held-out point")
        law = conclude(folder, last.run, design, [*measured, _measure(places[-1], last, series)])
        studies.publish(law, [arm.folder for arm in study.arms], options)
    return law


def refuse_start(along: Axis, start: StrPath) -> None:
    """Refuse weights to begin from along size, before they are fetched.

    Raises:
        VitkitError: there are such weights.
    """
    if start and along == "size":
        raise VitkitError("Along size every point is a new model, which no start fits: leave --start out.")


def base_run(data: StrPath, recipe: Recipe, start: StrPath, listener: Listener) -> Run:
    """Make the run that the points are variants of: by the recipe, or by the start."""
    if not data:
        raise VitkitError("Which images? vitkit scale DATA, such as digits or a folder of class folders.")
    if isinstance(recipe, Run):
        run = recipe
    elif start and not recipe:
        run = Run()
    else:
        run = recipes.recipe(recipe or propose_recipe(str(data), listener))
    run = replace(run, data=str(data))
    if start:
        run = finetune.suit_start(replace(run, start=StartConfig(str(start))), listener=listener).run
    return with_absolute_paths(run)


def propose_recipe(data: str, listener: Listener, has_model: bool = False) -> str:
    """Name the recipe that suits the size of the images, as `vitkit data check` does.

    Args:
        data: the images, as for --data.
        listener: hears that they are looked at.
        has_model: whether a model is chosen already, which a recipe with a model of its own would replace.

    Raises:
        VitkitError: there are no such images.
    """
    if data == "digits":
        return "digits"
    with listener.progress("looking at the images"):
        return suggest_recipe(sample_sizes(list_images(Run(data=data)).splits["train"]), has_model)


def _open_images(run: Run, design: Design, options: StudyOptions) -> Opened:
    """List the images, and refuse images and options that do not allow a law of scale.

    Raises:
        VitkitError: there are no test images; an option is given that the points themselves decide; the task
            measures no error; or the number of threads is impossible.
    """
    require_threads(options.threads)
    refuse_start(design.along, run.start.start)
    if run.splits.subset is not None:
        raise VitkitError(
            "The points of a law are parts of the training images themselves: leave --subset out."
        )
    if run.training.minutes is not None:
        raise VitkitError("--minutes is the length of one run: give --budget, the time of all points.")
    curve, monitor = find_task(run.task).learning.curve, find_task(run.task).learning.monitor
    # The curve must be an error: 1 minus a fraction that is right (maximised), or a loss (minimised).
    if curve.is_fraction != (monitor.direction == "max"):
        raise VitkitError(
            f"A law of scale is one of errors, and {run.task} is judged by {monitor.metric}: neither "
            "a fraction that is right nor a loss. Choose another --task."
        )
    with options.listener.progress("listing images"):
        data = list_images(run)
    if "test" not in data.splits:
        raise VitkitError(
            "A law of scale is measured on test images, and there are none: give --splits.test-fraction."
        )
    is_started = design.along == "data" and bool(run.start.start)
    if is_started and trained_model.is_training_data(describe_start(run).card, run.data):
        options.listener.warn(
            f"{run.start.start} was trained on these images, also on images that the smaller points leave "
            "out: the law does not hold for more images."
        )
    return Opened(run, data)


def _plan(design: Design, options: StudyOptions, opened: Opened, steps: int) -> tuple[int, studies.StudyPlan]:
    """Choose the steps of the held-out point, by the budget if there is one, and time all points.

    Args:
        design, options: of the study.
        opened: the run that the points are variants of, and its images.
        steps: of the held-out point without a budget.

    Raises:
        VitkitError: the images, the model or the budget are too small for such points.
    """
    run, count, budget = opened.run, len(opened.images.splits["train"]), design.budget_seconds
    if budget is not None:
        # Along steps the shortest point then has `FEWEST_STEPS`; else the held-out one sees each image once.
        steps = max(FEWEST_STEPS, math.ceil(count / run.training.batch_size))
        if design.along == "steps":
            steps = math.ceil(FEWEST_STEPS * BEYOND * SPAN)
    _, arms = _make_points(design, opened, steps)
    studies.check_arms(arms[-1:], options, opened)
    # The largest first, by which all are timed whose models are alike.
    paces = studies.measure_paces({arm.folder: arm.run for arm in reversed(arms)}, options, opened)

    def cost(steps: int) -> float:
        _, arms = _make_points(design, opened, steps)
        seconds = (studies.run_seconds(arm.run, paces[arm.folder], opened.images) for arm in arms)
        return design.seeds * math.fsum(seconds)

    if budget is not None:
        if cost(steps) > budget:
            raise VitkitError(
                f"A budget of {format_duration(budget)} is too small: the fewest useful steps at the held-out"
                f" point, {steps:,}, and the points before it take {format_duration(cost(steps))} here. Give "
                "more --budget, fewer --seeds or --points, or a smaller model."
            )
        fewest = most = steps
        while cost(most) <= budget and most < 10**9:  # an end where steps take no time that could be measured
            most *= 2
        # The costs of the range rise, and the first fits: the last that fits stands before where the budget
        # goes.
        steps = fewest + bisect.bisect_right(range(fewest, most), budget, key=cost) - 1
        _, arms = _make_points(design, opened, steps)
    held_out = f"{arms[-1].label} are held out: predicted by the law of the others, then trained."
    return steps, studies.plan_arms(arms, options, opened, held_out, paces=paces)


def _make_points(design: Design, opened: Opened, steps: int) -> tuple[list[float], list[studies.Arm]]:
    """Make the x and the arm of each point, the held-out one last.

    Args:
        design: the axis, and the number of points.
        opened: the run that the points are variants of, and its images.
        steps: updates of the held-out point: of every point along data and size, of the longest along steps.

    Raises:
        VitkitError: there are too few images or steps, or the model has no shape to keep or is too small.
    """
    run, count = opened.run, len(opened.images.splits["train"])
    classes = len(opened.images.class_names)
    points: list[tuple[float, str, Run]] = []
    # Fractions of the held-out x: the fitted points, at equal factors, and that point itself.
    for fraction in (*np.geomspace(1 / (BEYOND * SPAN), 1 / BEYOND, design.points).tolist(), 1.0):
        if design.along == "steps":
            length = max(1, round(fraction * steps))
            points.append((float(length), f"{length:,} steps", _with_length(run, length, steps, count)))
        elif design.along == "size":
            # `BEYOND`: the run's own model is the largest that the law is fitted to.
            config, sized = _scaled(run, classes, BEYOND * fraction)
            flops = float(measure.training_flops(config, steps * run.training.batch_size))
            points.append((flops, sized.model, _with_length(sized, steps, steps, count)))
        else:
            size = round(fraction * count)
            if size < max(classes, 2):
                least = math.ceil(max(classes, 2) * BEYOND * SPAN)
                raise VitkitError(
                    f"The smallest point would have {size} of {count:,} training images, fewer than one for "
                    f"each of {classes} classes: expected {least:,} training images or more. Give more "
                    "images, or measure what more training would buy: --along steps."
                )
            updates = steps if design.hold == "steps" else max(1, round(steps * size / count))
            splits = replace(run.splits, subset=None if size == count else f"[:{size}]")
            point = _with_length(replace(run, splits=splits), updates, steps, count)
            points.append((float(size), f"{size:,} training images", point))
    places = [x for x, _, _ in points]
    if len(set(places)) < len(places):
        few = {
            "data": "there are too few training images",
            "steps": f"{steps:,} steps are too few",
            "size": f"{run.model} is too small",
        }
        raise VitkitError(
            f"Two of the {len(places)} points are the same: {few[design.along]} for points over a factor of "
            f"{SPAN * BEYOND:.0f}. Give more of these, or fewer --points."
        )
    series, named = studies.arm_series(design.seeds), enumerate(points, 1)
    return places, [
        studies.Arm(f"{design.along}-{n:02d}", label, run, series) for n, (_, label, run) in named
    ]


def _with_length(run: Run, steps: int, most: int, count: int) -> Run:
    """Give a point its number of steps, and as many validations as the held-out point.

    With more validations a point would have more chances of a lucky one. If images are held out for
    validation, the best weights are tested, whatever the recipe selects.

    Args:
        run: the run of the point.
        steps: its steps.
        most: the steps of the held-out point.
        count: all training images.
    """
    longest = replace(run.training, steps=most)
    validations = math.ceil(most / longest.evaluation_interval(count))
    run = budget.with_steps(run, steps, count)
    select = "best" if run.splits.val_fraction else run.training.select
    every = max(1, math.ceil(steps / validations))
    training = replace(run.training, evaluate_every=every, select=select, evaluate_test=True)
    return replace(run, training=training)


def _scaled(run: Run, num_classes: int, factor: float) -> tuple[zoo.ModelConfig, Run]:
    """Scale the FLOPs of a run's model by a factor, in the same proportions; returns configuration and run.

    FLOPs grow as depth times the square of the width, so that both grow by the cube root. Depth is rounded to
    a whole number, and the width compensates for it. The width of a head stays about the same.

    Raises:
        VitkitError: it is no Vision Transformer on patches of pixels.
    """
    size, architecture = run.preprocessing.image_size, run.architecture
    model = architecture.build_config(run.model, num_classes, run.preprocessing)
    backbone, stem = getattr(model, "backbone", None), getattr(model, "stem_channels", ())
    if not hasattr(model, "depth") or backbone is not None or stem:
        raise VitkitError(
            f"Along size a Vision Transformer on patches of pixels grows, and {run.model} is none or has "
            "convolutions before it. Give another --model, such as ViT-192x6x3/4."
        )
    vit = zoo.vit_config(run.model, num_classes, size)
    if factor != 1:
        depth = max(1, round(vit.depth * factor ** (1 / 3)))
        width = vit.width * math.sqrt(factor * vit.depth / depth)
        num_heads = max(1, round(width * vit.num_heads / vit.width))
        multiple = 4 * num_heads  # sines and cosines of two coordinates need a width that 4 divides
        width = max(1, round(width / multiple)) * multiple
        mlp_dim = max(1, round(width * vit.mlp_dim / vit.width))
        grown = replace(vit, width=width, depth=depth, num_heads=num_heads, mlp_dim=mlp_dim)
        # The new name has the width of the MLP. The layer before the head, where there is one, stays as wide
        # as the model.
        before_head = None if architecture.representation_size is None else width
        architecture = replace(architecture, representation_size=before_head)
        run = replace(run, model=zoo.changed_name(run.model, grown), architecture=architecture)
    return architecture.build_config(run.model, num_classes, run.preprocessing), run


def _measure(x: float, arm: studies.Arm, series: series_record.Series) -> Measured:
    """Read the test errors of a point.

    Raises:
        VitkitError: a score is of other images than the test images.
    """
    is_fraction = find_task(series.run.task).learning.curve.is_fraction
    scores = [(score.value, score) for score in series.scores if score.value is not None]
    for _, score in scores:
        if score.split != "test":
            raise VitkitError(f"{arm.label}: expected a score on test images, found {score.split} images.")
    errors = tuple(1 - value if is_fraction else value for value, _ in scores)
    # Of 95 %: half of an interval is so many standard errors.
    intervals = [score.interval for _, score in scores if score.interval is not None]
    noises = [(high - low) / (2 * NORMAL_95) for low, high in intervals]
    # Without a noise for a loss: `LawFit.is_fraction` tells fractions by it.
    noise = math.fsum(noises) / len(noises) if is_fraction and noises else None
    diverged = sum(bool(member.diverged) for member in series.members)
    return Measured(arm.label, arm.folder, x, Point(x, errors, noise) if errors else None, diverged)


def conclude(folder: Path, run: Run, design: Design, measured: Sequence[Measured]) -> Scale:
    """Fit the law, compare the held-out point with its prediction, and extrapolate if the law holds.

    Args:
        folder: of the study.
        run: of the held-out point.
        design: of the study.
        measured: all points, the held-out one last.

    Raises:
        VitkitError: training diverged at so many points that too few are left.
    """
    *fitted, held_out = measured
    try:
        fit = fit_power_law([place.point for place in fitted if place.point is not None])
    except VitkitError as error:
        diverged = [place.label for place in fitted if place.point is None]
        if diverged:
            where = f"In {folder} training diverged at {join_names(diverged)}"
            error.args = (f"{error} {where}: give a lower --learning-rate and another --out.",)
        raise
    prediction, final, objection, beyond = fit.predict(held_out.x), None, fit.objection(), None
    if held_out.point is not None:
        final, objection = judge_held_out(fit, prediction, held_out.point)
        beyond = None if objection else final.extrapolate(BEYOND * held_out.x)
    elif not objection:
        objection = "training diverged at the held-out point"
    learning = find_task(run.task).learning
    return Scale(
        folder=folder,
        best=held_out.folder,
        data=run.data,
        model=run.model,
        along=design.along,
        hold=design.hold,
        metric=learning.monitor.metric,
        is_fraction=learning.curve.is_fraction,
        steps=run.training.total_steps(1),
        measured=tuple(fitted),
        held_out=held_out,
        fit=fit,
        prediction=prediction,
        final=final,
        objection=objection,
        beyond=beyond,
    )
