"""Fit a law of scale: test error falls with data, steps or size; predict what three times more would bring.

STUDY/study.json        the points, and the steps that fit into the budget, written before the first begins
STUDY/data-01/...       the series of runs of each point, the smallest first
STUDY/prediction.json   the law, and its prediction for the held-out point, written before that is trained
STUDY/scale.json, report.html   the result

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np

from vitkit.config import to_json
from vitkit.data.check import sample_sizes, suggest_recipe
from vitkit.data.sources import ImageData
from vitkit.durable import replace_json
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import NORMAL_95
from vitkit.evaluation.power_law import LawFit, Point, Prediction, fit_power_law, judge_held_out
from vitkit.jobs.finetune_defaults import suit_start
from vitkit.jobs.options import StrPath
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.series.report import write_page
from vitkit.jobs.study.options import Axis, MachineOptions, Recipe, StudyOptions
from vitkit.jobs.study.study import (
    RECORD,
    Arm,
    StudyResult,
    arm_series,
    check_arms,
    complete_arms,
    measure_paces,
    new_study,
    read_study,
)
from vitkit.jobs.train_run import check_run
from vitkit.listener import Listener
from vitkit.models.measure import training_flops
from vitkit.models.zoo import ModelConfig, changed_name, model_config, vit_config
from vitkit.result import Block, Plot, Table
from vitkit.runs.budget import Pace, with_steps
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.folder import numbered_folders
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, describe_start, list_images, with_absolute_paths
from vitkit.runs.series_record import Series
from vitkit.runs.trained_model import is_training_data
from vitkit.tasks import find_task
from vitkit.text import format_count, format_duration, join_names, pluralize, without_places

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
class Scale(StudyResult):
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

    def summary(self) -> str:
        """Give the conclusions."""
        return " ".join(conclusions(self))

    def blocks(self) -> Sequence[Block]:
        """Return the table of the points, the conclusions and the remarks."""
        return (point_table(self), *conclusions(self), *remarks(self))

    def model_folder(self) -> str:
        """Return the folder of the largest point."""
        return self.held_out.folder

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data, with the sentences about them."""
        return {**to_json(self), "conclusions": conclusions(self)}


def conclusions(result: Scale) -> list[str]:
    """Conclude from the held-out point, and from the extrapolation or the objection to it."""
    label, more = AXES[result.along]
    metric = result.metric.replace("_", " ")
    low, high = (format_count(place.x) for place in (result.measured[0], result.measured[-1]))
    sentences = [
        f"From {low} to {high} {label} the {'error' if result.is_fraction else metric} is "
        f"{result.fit.law.describe()}."
    ]
    point, prediction = result.held_out.point, result.prediction
    expected = (
        f"the law predicted {shown(result, prediction.error)} ({interval(result, prediction)} if it holds)"
    )
    where = f"At {result.held_out.label}, three times beyond"
    if point is None:
        sentences.append(f"{where}, {expected}; training diverged.")
    else:
        side = "inside" if prediction.holds(point.error) else "OUTSIDE of"
        sentences.append(
            f"{where}, {expected}; {shown(result, point.error)} {metric} came out, {side} the interval."
        )
    if result.objection:
        sentences.append(
            f"The law does not hold here: {result.objection}. Nothing is said about three times {more}."
        )
    if result.beyond is not None and result.final is not None and point is not None:
        ends = "from no further gain to one as fast as through the last points"
        expected = f"about {shown(result, result.beyond.error)} {metric} by the law"
        if not result.final.falls_at_last:
            ends, expected = "the last points show no gain", f"{shown(result, point.error)} {metric} as now"
        sentences.append(
            f"EXTRAPOLATION: three times {more} would reach {expected} "
            f"({interval(result, result.beyond)}: {ends})."
        )
    return sentences


def remarks(result: Scale) -> list[str]:
    """Explain what was equal at all points, what the intervals cover, and which runs diverged."""
    equal = {
        "data": "Every point made the same number of updates and was validated equally often, on the same "
        "images: with equal passes, fewer images would also mean fewer updates.",
        "steps": "Every point is a training of its own, whose learning rate ends with it.",
        "size": "Width and depth grow together, and the steps stay the same.",
    }[result.along]
    if result.hold == "epochs":
        equal = "Every point made the same number of passes: fewer images also mean fewer updates."
    sentences = [
        equal,
        "At every point the best weights by validation are tested, on the same test images; the intervals "
        "are for these images, and not for others.",
    ]
    if result.fit.residuals <= 2:
        sentences.append(
            "Five points leave two residuals to estimate the noise by: more --points or --seeds narrow the "
            "interval."
        )
    return [
        *sentences,
        *(
            f"{place.label}: training diverged in {pluralize(place.diverged, 'run')}, left out."
            for place in (*result.measured, result.held_out)
            if place.diverged
        ),
    ]


def shown(result: Scale, error: float) -> str:
    """Write an error as the metric: of a fraction such as accuracy, the percentage that is right."""
    return f"{1 - error:.1%}".replace("%", " %") if result.is_fraction else f"{error:.4g}"


def interval(result: Scale, prediction: Prediction) -> str:
    """Write the interval of a prediction, from its lower to its upper end."""
    ends = (prediction.high, prediction.low) if result.is_fraction else (prediction.low, prediction.high)
    low, high = (shown(result, end) for end in ends)
    return f"95 % interval {low.removesuffix(' %')} to {high}"


def point_table(result: Scale) -> Table:
    """Make the table of the points: x, the measured scores, and the law's."""
    metric = result.metric.replace("_", " ")
    rows = []
    for place in (*result.measured, result.held_out):
        law = shown(result, result.fit.law.at(place.x))
        is_last = place is result.held_out
        law += f" ({interval(result, result.prediction)})" if is_last else ""
        remark = "held out" if is_last else ""
        if place.point is None:
            rows.append((place.label, "–", "–", law, "diverged"))
            continue
        seeds = ", ".join(shown(result, error) for error in place.point.errors)
        rows.append((place.label, shown(result, place.point.error), seeds, law, remark))
    return Table(
        (AXES[result.along][0], f"{metric} on test images", "each seed", "the law", "remark"),
        tuple(rows),
        text=(0, -1),
    )


def write_result(result: Scale, command: str) -> Path:
    """Write `scale.json` and `report.html` into the folder of the study.

    Args:
        result: of the study.
        command: that made it.

    Returns:
        The page.
    """
    folder = result.folder
    replace_json(folder / "scale.json", without_places(result.to_json()))
    folders = [place.folder for place in (*result.measured, result.held_out)]
    pages = [name for name in folders if (folder / name / "report.html").exists()]
    shown: list[Block] = [point_table(result), *remarks(result), _plot(result)]
    return write_page(folder, conclusions(result), [("Points", shown)], pages, command)


def _plot(result: Scale) -> Plot:
    """Draw the points, the law with its interval, the held-out point and three times beyond."""
    from vitkit.analysis.study_figures import scale_plot

    first, last = result.measured[0].x, result.held_out.x
    band = [result.fit.predict(x) for x in np.geomspace(first, last, 40).tolist()]
    beyond: list[Prediction] = []
    if result.beyond is not None and result.final is not None:
        beyond = [result.final.extrapolate(x) for x in np.geomspace(last, result.beyond.x, 12).tolist()]
    figure = scale_plot(
        result.fit.points,
        band,
        result.held_out.point,
        beyond,
        AXES[result.along][0],
        f"test error (1 - {result.metric.replace('_', ' ')})" if result.is_fraction else result.metric,
        result.is_fraction,
    )
    return Plot(figure, "law", " ".join(conclusions(result)))


KIND = "scale"
PREDICTION = "prediction.json"
SPAN = 10**1.5
"""The largest fitted x over the smallest. `benchmarks/power_law.py` simulates how often the interval of a
prediction holds the error, for this factor and for `BEYOND`."""
BEYOND = 3.0
"""The held-out x over the largest fitted one, and the x of the extrapolation over the held-out one."""
FINISHING = 4.0
"""Seconds of a run for listing images, checkpoints and the report: two to four were measured for small models
on two cores."""
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

    def __post_init__(self) -> None:
        if not FEWEST_POINTS <= self.points <= MOST_POINTS:
            raise VitkitError(f"points is from {FEWEST_POINTS} to {MOST_POINTS}, found {self.points}.")
        if self.hold != "steps" and self.along != "data":
            raise VitkitError("hold epochs is for --along data: leave it out.")
        arm_series(self.seeds)  # for its error, before anything is measured
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


@dataclass(frozen=True)
class ScalePlan:
    """The points of a study, the held-out one last."""

    places: tuple[float, ...]
    """The x of each point: training images, steps or FLOPs."""
    arms: tuple[Arm, ...]
    steps: int
    """Updates of the held-out point: of every point along data and size, and of the longest along steps."""
    seconds: float | None
    """The measured time of all points together; None where it was not measured."""


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
    command: str = "vitkit.scale(...)",
    **machine: Unpack[MachineOptions],
) -> Scale:
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
        command: continues the study; its record has it.
        machine: what trains, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Returns:
        The law, the prediction and the measured error; the page is `report.html` in its folder.

    Raises:
        VitkitError: the images, the options or the machine do not allow it, the budget is too small, or `out`
            holds something else.
        InterruptedTraining: a signal stopped it; the same call continues.
    """
    design = Design(along, points, seeds, hold, budget)
    options = StudyOptions(command=command, **machine)
    listener = options.listener
    refuse_start(along, start)
    run = base_run(data, recipe, start, listener)
    opened = _open_images(run, design, options)
    place = next(numbered_folders(run, opened.images.name, f"-scale-{along}")) if out is None else Path(out)
    plan = _plan(design, options, opened, _read_budget(place, design))
    described = to_json(design)
    if budget is not None:  # chosen by the clock once: a study that is continued reads them here
        described |= {"steps": plan.steps, "seconds": plan.seconds}
    study = new_study(KIND, command, described, plan.arms)
    if not (place / RECORD).exists():  # a study that has begun was checked then
        check_arms(study.arms, options, opened)
    *fitted, last = study.arms
    with study.claim(place) as folder:
        listener.show([("points", describe_plan(plan))])
        completed = complete_arms(fitted, folder, options)
        measured = tuple(
            _measure(x, arm, series)
            for x, arm, series in zip(plan.places[:-1], fitted, completed, strict=True)
        )
        fit = _fit(measured, folder)
        prediction = fit.predict(plan.places[-1])
        _keep_prediction(folder, fit, prediction)
        listener.note(f"The prediction is in {folder / PREDICTION}; the held-out point is trained next.")
        # That it diverges is a result too: the law is then said not to hold.
        (series,) = complete_arms([last], folder, options, "the held-out point")
        held_out = _measure(plan.places[-1], last, series)
        result = _conclude(folder, design, plan, measured, fit, prediction, held_out)
        listener.show([("report", [str(write_result(result, command))])])
    return result


def plan_scale(run: Run, design: Design, options: StudyOptions) -> ScalePlan:
    """Choose the points of a study and measure how long they take, without training them.

    Raises:
        VitkitError: as `scale`.
    """
    opened = _open_images(with_absolute_paths(run), design, options)
    plan = _plan(design, options, opened, None, measure=True)
    check_arms(plan.arms, options, opened)
    return plan


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
        run = named_recipe(recipe or propose_recipe(str(data), listener))
    run = replace(run, data=str(data))
    if start:
        run = suit_start(replace(run, start=StartConfig(str(start))), listener=listener).run
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
    if design.along == "data" and run.start.start and is_training_data(describe_start(run).card, run.data):
        options.listener.warn(
            f"{run.start.start} was trained on these images, also on images that the smaller points leave "
            "out: the law does not hold for more images."
        )
    return Opened(run, data)


def _read_budget(out: Path, design: Design) -> tuple[int, float] | None:
    """Read the steps and seconds that the budget of a study was turned into; None for a new study.

    It is None for another study's record too, which `Study.claim` refuses.
    """
    if design.budget is None or not (out / RECORD).exists():
        return None
    recorded = read_study(out).options
    steps, seconds = recorded.get("steps"), recorded.get("seconds")
    if not isinstance(steps, int) or steps < 1:
        return None
    if not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        return None
    return steps, float(seconds)


def _plan(
    design: Design,
    options: StudyOptions,
    opened: Opened,
    recorded: tuple[int, float] | None,
    measure: bool = False,
) -> ScalePlan:
    """Choose the points; a new study with a budget times its steps first.

    Args:
        design, options: of the study.
        opened: the run that the points are variants of, and its images.
        recorded: the steps and seconds of a study that has begun with a budget.
        measure: whether to time the points without a budget too.

    Raises:
        VitkitError: the images, the model or the budget are too small for such points.
    """
    run, data, count, budget = (
        opened.run,
        opened.images,
        len(opened.images.splits["train"]),
        design.budget_seconds,
    )
    steps, seconds = run.training.total_steps(count), None
    if recorded is not None:
        steps, seconds = recorded
    elif budget is not None or measure:
        # The largest first, by which all are timed whose models are alike.
        largest, *others = (point for _, _, point in reversed(_make_points(design, run, data, steps)))
        check_run(largest, device=options.device, threads=options.threads, opened=opened)
        timed = {f"point {number}": point for number, point in enumerate([largest, *others])}
        paces = [*reversed(measure_paces(timed, options, opened).values())]

        def cost(steps: int) -> float:
            return _seconds(_make_points(design, run, data, steps), paces, data, design.seeds)

        if budget is not None:
            steps = _steps_within(budget, cost, _fewest_steps(design, run, count))
        seconds = cost(steps)
    points = _make_points(design, run, data, steps)
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
    series = arm_series(design.seeds)
    arms = tuple(
        Arm(f"{design.along}-{n:02d}", label, point, series) for n, (_, label, point) in enumerate(points, 1)
    )
    return ScalePlan(tuple(places), arms, steps, seconds)


def _make_points(design: Design, run: Run, data: ImageData, steps: int) -> list[tuple[float, str, Run]]:
    """Make x, a label and the run of each point, the held-out one last.

    Args:
        design: the axis, and the number of points.
        run: the run that the points are variants of.
        data: its images.
        steps: updates of the held-out point.

    Raises:
        VitkitError: there are too few images, or the model has no shape to keep.
    """
    count = len(data.splits["train"])
    # Fractions of the held-out x: the fitted points, at equal factors, and that point itself.
    fractions = [*np.geomspace(1 / (BEYOND * SPAN), 1 / BEYOND, design.points).tolist(), 1.0]
    if design.along == "steps":
        lengths = [max(1, round(fraction * steps)) for fraction in fractions]
        return [(float(n), f"{n:,} steps", _with_length(run, n, steps, count)) for n in lengths]
    if design.along == "size":
        # `BEYOND`: the run's own model is the largest that the law is fitted to.
        configs = [_scaled(run, len(data.class_names), BEYOND * fraction) for fraction in fractions]
        return [
            (
                float(training_flops(config, steps * run.training.batch_size)),
                sized.model,
                _with_length(sized, steps, steps, count),
            )
            for config, sized in configs
        ]
    sizes = [round(fraction * count) for fraction in fractions]
    if sizes[0] < max(len(data.class_names), 2):
        least = math.ceil(max(len(data.class_names), 2) * BEYOND * SPAN)
        raise VitkitError(
            f"The smallest point would have {sizes[0]} of {count:,} training images, fewer than one for each "
            f"of {len(data.class_names)} classes: expected {least:,} training images or more. Give more "
            "images, or measure what more training would buy: --along steps."
        )
    points = []
    for size in sizes:
        updates = steps if design.hold == "steps" else max(1, round(steps * size / count))
        splits = replace(run.splits, subset=None if size == count else f"[:{size}]")
        point = _with_length(replace(run, splits=splits), updates, steps, count)
        points.append((float(size), f"{size:,} training images", point))
    return points


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
    run = with_steps(run, steps, count)
    return replace(
        run,
        training=replace(
            run.training,
            evaluate_every=max(1, math.ceil(steps / validations)),
            select="best" if run.splits.val_fraction else run.training.select,
            evaluate_test=True,
        ),
    )


def _scaled(run: Run, num_classes: int, factor: float) -> tuple[ModelConfig, Run]:
    """Scale the FLOPs of a run's model by a factor, in the same proportions; returns configuration and run.

    FLOPs grow as depth times the square of the width, so that both grow by the cube root. Depth is rounded to
    a whole number, and the width compensates for it. The width of a head stays about the same.

    Raises:
        VitkitError: it is no Vision Transformer on patches of pixels.
    """
    size, architecture = run.preprocessing.image_size, run.architecture
    model = model_config(run.model, num_classes, size)
    stem = architecture.stem_channels
    if stem is None:
        stem = getattr(model, "stem_channels", ())
    if not hasattr(model, "depth") or getattr(model, "backbone", None) is not None or stem:
        raise VitkitError(
            f"Along size a Vision Transformer on patches of pixels grows, and {run.model} is none or has "
            "convolutions before it. Give another --model, such as ViT-192x6x3/4."
        )
    vit = vit_config(run.model, num_classes, size)
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
        run = replace(run, model=changed_name(run.model, grown), architecture=architecture)
    return architecture.build_config(run.model, num_classes, run.preprocessing), run


def _seconds(
    points: Sequence[tuple[float, str, Run]], paces: Sequence[Pace], data: ImageData, seeds: int
) -> float:
    """Estimate the seconds of all points: steps, validations, the test and `FINISHING`."""
    validated, tested = (len(data.splits.get(split, ())) for split in ("val", "test"))
    total = 0.0
    for (_, _, run), pace in zip(points, paces, strict=True):
        training = run.training
        assert training.steps is not None and training.evaluate_every is not None  # of `_with_length`
        # Without validation images a test is assumed to take as long as training on as many images.
        test = pace.validation * tested / validated if validated else pace.step * tested / training.batch_size
        validations = math.ceil(training.steps / training.evaluate_every)
        total += training.steps * pace.step + validations * pace.validation + test + FINISHING
    return total * seeds


def _fewest_steps(design: Design, run: Run, count: int) -> int:
    """Count the fewest steps of the held-out point that a budget may choose.

    Along steps, the shortest point then has `FEWEST_STEPS`; else the held-out point sees each image once.
    """
    if design.along == "steps":
        return math.ceil(FEWEST_STEPS * BEYOND * SPAN)
    return max(FEWEST_STEPS, math.ceil(count / run.training.batch_size))


def _steps_within(budget: float, cost: Callable[[int], float], fewest: int) -> int:
    """Find the most steps whose cost fits into a budget of seconds.

    Raises:
        VitkitError: the fewest steps do not fit.
    """
    if cost(fewest) > budget:
        raise VitkitError(
            f"A budget of {format_duration(budget)} is too small: the fewest useful steps at the held-out "
            f"point, {fewest:,}, and the points before it take {format_duration(cost(fewest))} here. Give "
            "more --budget, fewer --seeds or --points, or a smaller model."
        )
    most = fewest
    while cost(most) <= budget and most < 10**9:  # an end where steps take no time that could be measured
        most *= 2
    # The costs of the range rise, and the first fits: the last that fits stands before where the budget goes.
    return fewest + bisect.bisect_right(range(fewest, most), budget, key=cost) - 1


def describe_plan(plan: ScalePlan) -> list[str]:
    """List the points, and their time where it was measured."""
    lines = [f"{arm.label}, {arm.run.training.steps:,} steps" for arm in plan.arms]
    lines[-1] += " (held out: predicted, then trained)"
    seeds = plan.arms[0].series.runs
    if seeds > 1:
        lines.append(f"{seeds} seeds each")
    if plan.seconds is not None:
        lines.append(f"about {format_duration(plan.seconds)} in all, as measured on this machine")
    return lines


def _measure(x: float, arm: Arm, series: Series) -> Measured:
    """Read the test errors of a point.

    Raises:
        VitkitError: a score is of other images than the test images.
    """
    errors, noises, diverged = [], list[float](), 0
    is_fraction = find_task(series.run.task).learning.curve.is_fraction
    for member in series.members:
        diverged += bool(member.diverged)
        score = member.score
        if score is None or score.value is None:
            continue
        if score.split != "test":
            raise VitkitError(f"{arm.label}: expected a score on test images, found {score.split} images.")
        errors.append(1 - score.value if is_fraction else score.value)
        if score.interval is not None:  # of 95 %: its half is so many standard errors
            noises.append((score.interval[1] - score.interval[0]) / (2 * NORMAL_95))
    # Without a noise for a loss: `LawFit.is_fraction` tells fractions by it.
    noise = math.fsum(noises) / len(noises) if is_fraction and noises else None
    point = Point(x, tuple(errors), noise) if errors else None
    return Measured(arm.label, arm.folder, x, point, diverged)


def _fit(measured: Sequence[Measured], folder: Path) -> LawFit:
    """Fit the law to the points that have an error.

    Raises:
        VitkitError: training diverged at so many that too few are left.
    """
    points = [outcome.point for outcome in measured if outcome.point is not None]
    diverged = [outcome.label for outcome in measured if outcome.point is None]
    try:
        return fit_power_law(points)
    except VitkitError as error:
        if not diverged:
            raise
        raise VitkitError(
            f"{error} In {folder} training diverged at {join_names(diverged)}: give a lower --learning-rate "
            "and another --out."
        ) from None


def _keep_prediction(folder: Path, fit: LawFit, prediction: Prediction) -> None:
    """Write the prediction before the held-out point begins; it follows from the points, and stays."""
    if not (folder / PREDICTION).exists():
        record = {
            "points": [to_json(point) for point in fit.points],
            "law": to_json(fit.law),
            "objection": fit.objection(),
            "prediction": to_json(prediction),
        }
        replace_json(folder / PREDICTION, record)


def _conclude(
    folder: Path,
    design: Design,
    plan: ScalePlan,
    measured: Sequence[Measured],
    fit: LawFit,
    prediction: Prediction,
    held_out: Measured,
) -> Scale:
    """Compare the held-out point with its prediction, and extrapolate threefold if the law holds."""
    objection, final, beyond = fit.objection(), None, None
    if held_out.point is not None:
        final, objection = judge_held_out(fit, prediction, held_out.point)
    elif not objection:
        objection = "training diverged at the held-out point"
    if not objection and final is not None:
        beyond = final.extrapolate(BEYOND * held_out.x)
    run = plan.arms[-1].run
    task = find_task(run.task).learning
    return Scale(
        folder=folder,
        data=run.data,
        model=run.model,
        along=design.along,
        hold=design.hold,
        metric=task.monitor.metric,
        is_fraction=task.curve.is_fraction,
        steps=plan.steps,
        held_out=held_out,
        fit=fit,
        prediction=prediction,
        measured=tuple(measured),
        final=final,
        objection=objection,
        beyond=beyond,
    )
