"""Reproduce a figure or a table of the paper: train its arms, or measure a checkpoint, and judge it.

OUT/study.json    the options, the arms, and the steps that this machine has time for, written first
OUT/ARM/          the series of runs of each arm (`jobs/study/study.py`)
OUT/result.json   the result, OUT/report.html the same beside the paper's numbers
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack, get_args

import numpy as np

from vitkit import config
from vitkit.analysis.figures import line_figure
from vitkit.config import COUNT, IN_MEMORY_ALONE, AtLeastOne, Positive, Range, Valid
from vitkit.data.config import Preprocessing, Splits
from vitkit.durable import refuse_link
from vitkit.errors import VitkitError
from vitkit.evaluation import statistics
from vitkit.jobs import cost, fewshot, inspect, recipes, vtab
from vitkit.jobs.options import ItemName, MachineOptions, Recipe, StrPath, StrPaths, StudyOptions, as_names
from vitkit.jobs.reproduce import designs
from vitkit.jobs.reproduce.designs import Base, Variant, base_of, flops
from vitkit.jobs.reproduce.items import ITEMS, TABLES, Claim, Item
from vitkit.jobs.study import study
from vitkit.listener import Listener
from vitkit.models.zoo import model_config
from vitkit.result import Block, Number, Photo, Plot, Result, Section, Table, png_address, table_of
from vitkit.runs import budget, run_options, series_record, trained_model
from vitkit.runs.config import Architecture, Run, StartConfig
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, describe_start, list_images
from vitkit.tasks import find_task
from vitkit.tasks.page import count_cell, fraction_cell, interval_cell, points
from vitkit.text import format_size, join_names, pluralize, without_places

Outcome = Literal["holds", "does not hold", "cannot be told"]
ALIKE = 0.01
"""Two arms are alike where the whole interval of their difference is within one point. The positions of
Table 8 that the paper calls alike are at most 0.33 points apart, too little to measure on a few hundred
images."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a claim."""

    claim: Claim
    more: tuple[str, ...]
    """The arms of `Claim.more`, with the validation's choice in place of each name that ends in *."""
    less: tuple[str, ...]
    difference: statistics.PairedDifference | None
    """None where training diverged in every run of an arm."""
    adjusted_p: float | None = None
    """Its p by Holm over all claims but of the kind "alike", which have None."""
    outcome: Outcome | None = None
    """None where the paper concludes nothing."""


def judge(
    claims: Sequence[Claim], scores: Mapping[str, statistics.Scores], validation: Mapping[str, float]
) -> list[Finding]:
    """Test each claim with the scores of the arms; claims about arms that were not trained are left out.

    Args:
        claims: of a study.
        scores: of its arms by name, on the same test images.
        validation: mean score of the validation images by arm, by which an arm is chosen.
    """

    def choose(name: str) -> str:
        """Return the arm of a name, of several arms the best by validation; "" where there is no such arm."""
        arms = [arm for arm in scores if arm == name or (name[-1] == "*" and arm.startswith(name[:-1]))]
        # Of equal scores the first, in the order of the arms: the same arm every time.
        return max(arms, key=lambda arm: validation.get(arm, -1.0), default="")

    findings = []
    for claim in claims:
        more, less = (tuple(map(choose, side)) for side in (claim.more, claim.less))
        if "" not in (*more, *less):
            difference = statistics.compare_scores(
                [scores[arm] for arm in less], [scores[arm] for arm in more]
            )
            findings.append(Finding(claim, more, less, difference))
    differences = [None if finding.claim.kind == "alike" else finding.difference for finding in findings]
    adjusted = zip(findings, statistics.adjust(differences), strict=True)
    return [replace(finding, adjusted_p=p, outcome=_outcome(finding, p)) for finding, p in adjusted]


def _outcome(finding: Finding, adjusted_p: float | None) -> Outcome | None:
    """Decide whether a claim holds, by the interval of its difference or its adjusted p."""
    difference = finding.difference
    if finding.claim.kind == "open":
        return None
    # A single seed, or pre-training, is about these weights alone, on however many images they are tested.
    if difference is None or difference.seed_variance is None or finding.claim.one_pretraining:
        return "cannot be told"
    low, high = difference.interval
    if finding.claim.kind == "alike":
        if low >= -ALIKE and high <= ALIKE:
            return "holds"
        return "does not hold" if low > ALIKE or high < -ALIKE else "cannot be told"
    if adjusted_p is None or adjusted_p >= statistics.SURE:
        return "cannot be told"
    return "holds" if difference.mean > 0 else "does not hold"


def summarise(findings: Sequence[Finding]) -> str:
    """Count the outcomes of the paper's conclusions in a sentence; "" where none was tested."""
    outcomes = [finding.outcome for finding in findings if finding.outcome is not None]
    plurals = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}
    counts = ((outcomes.count(outcome), outcome) for outcome in get_args(Outcome))
    counted = [pluralize(count, outcome, plurals[outcome]) for count, outcome in counts if count]
    conclusions = pluralize(len(outcomes), "conclusion")
    return f"Of {conclusions} of the paper, {join_names(counted)} at this size." if outcomes else ""


def say(finding: Finding, tested_on: study.TestImages) -> str:
    """Write a finding in a sentence: outcome, difference with its interval, and detectable difference."""
    difference, claim = finding.difference, finding.claim
    if difference is None:
        return f"{claim.statement}: cannot be told, because training diverged in every run of an arm."
    low, high = (points(tested_on.images, value, signed=True) for value in difference.interval)
    size = f"{points(tested_on.images, difference.mean, signed=True)} points (95 % interval {low} to {high})"
    if difference.seed_variance is None or claim.one_pretraining:
        sample = "pre-training of each kind" if claim.one_pretraining else "seed"
        return f"{claim.statement}: this cannot be told from one {sample}, {size} for these weights."
    least = (
        f"a difference of {points(tested_on.images, difference.detectable)} points or more would have been "
        "found in 8 of 10 studies of this size"
    )
    if claim.kind == "open":
        is_sure = finding.adjusted_p is not None and finding.adjusted_p < statistics.SURE
        sentence = size if is_sure else f"no difference found, {size}; {least}"
        return f"{claim.statement}: {sentence}."
    if finding.outcome == "cannot be told":
        margin = f"; alike means within {100 * ALIKE:g} point" if claim.kind == "alike" else ""
        return f"{claim.statement}: this cannot be told at this size, {size}; {least}{margin}."
    return f"{claim.statement}: this {finding.outcome} at this size, {size}."


VALIDATIONS = 10
"""Validations of a run that ends with its best weights, so that these are found to a tenth of the run. Other
runs validate at the end alone."""
CHECKPOINTS = 10
"""Checkpoints of a run: a kill loses a tenth of it."""
PLANNED = 0.85
"""Fraction of the minutes that the runs are planned to take: the rest is for timing the arms, and for a
machine that becomes slower."""
LONG = 10_000
"""Steps of the base that are so many that rounding the steps of arms does not matter."""
FEW_STEPS = 100
"""Steps below which the accuracy of a small ViT is hardly above that of guessing."""
VTAB = ("fig2", "table9")
"""Items that fine-tune a checkpoint on the tasks of VTAB-1k."""
SMALL_SIDE = 32
"""Pixels a side of images other than the digits: small enough for a base of two minutes."""


@dataclass(frozen=True)
class Request(Valid):
    """The options that decide the runs of a study, as its record has them."""

    item: ItemName
    minutes: Positive
    steps: AtLeastOne | None
    seeds: Annotated[int, Range(f"from 1 to {run_options.MOST_RUNS:,}", 1, run_options.MOST_RUNS)]
    only: tuple[str, ...]

    @property
    def kind(self) -> str:
        """The kind of the study in its record."""
        return f"reproduction of {self.item}"


@dataclass(frozen=True)
class Length:
    """The measured options of a study, fixed when it begins."""

    length: Annotated[int, Range("a number of steps", 1, COUNT)]
    """Steps of the base."""
    speed: Mapping[str, Positive]
    """Images a second in training, by arm."""


@dataclass(frozen=True)
class ArmRow:
    """The options, cost and scores of an arm; scores are from 0 to 1."""

    name: str
    label: str
    line: str
    """The line of the figure that it is a point of."""
    x: float
    """Its place on the axis."""
    steps: int
    flops: int | None
    """FLOPs of a forward pass for one image; None where a start decides the model."""
    images_per_second: float | None
    """In training, as measured when the study began; None where it was not timed."""
    mean: float | None
    """Mean score of the test images; None where there is none."""
    interval: tuple[float, float] | None
    """95 %, over seeds and test images."""
    validation: float | None
    """Mean score of the validation images; -1 where there are none; None of an arm that learns without
    labels."""


@dataclass(frozen=True, repr=False)
class Reproduction(study.StudyResult):
    """The result of a study of the paper."""

    item: Item = field(metadata=IN_MEMORY_ALONE)
    answer: tuple[str, ...] = ()
    """Whether the paper's conclusion holds here, in sentences."""
    own: tuple[Section, ...] = field(default=(), metadata=IN_MEMORY_ALONE)
    """The sections of the page on our numbers."""
    findings: tuple[Finding, ...] = ()
    arms: tuple[ArmRow, ...] = ()
    comparison: study.Comparison | None = None
    """The arms with scores against the first one; None where no arm was trained."""
    setting: Mapping[str, str] = field(default_factory=dict)
    """The data, model and so on: a topic and its value each."""
    collected: Any = None
    """The numbers of other verbs as plain data."""

    def heading(self) -> str:
        """Name the figure or table."""
        return self.item.title

    def headline(self) -> Sequence[str]:
        """Give the conclusions here."""
        return self.answer

    def sections(self) -> Sequence[Section]:
        """Return our numbers, and the paper's."""
        papers = self.item.setting
        topics = {**papers, **self.setting}
        rows = tuple((topic, papers.get(topic, "–"), self.setting.get(topic, "–")) for topic in topics)
        why = (
            "The numbers differ because data, model and training do. The paper's size would need: "
            f"{self.item.at_paper_size}."
        )
        return (
            *self.own,
            Section("The paper", (self.item.conclusion, "It prints no numbers of its curves and pictures.")),
            *(Section(TABLES[name].source, (TABLES[name].table(),)) for name in self.item.paper),
            Section("Why they differ", (Table(("", "paper", "here"), rows), why)),
        )

    def blocks(self) -> Sequence[Block]:
        """Return the paper's conclusion, and whether it holds here."""
        return "", self.item.title, f"The paper: {self.item.conclusion}", "", *self.answer

    def to_json(self) -> dict[str, Any]:
        """Return the contents of result.json, without paths of this machine."""
        numbers = {**config.to_json(self), "title": self.item.title, "conclusion": self.item.conclusion}
        del numbers["folder"]
        return numbers


def reproduce(
    item: ItemName,
    *,
    data: str = "digits",
    start: StrPaths = (),
    images: Sequence[StrPath] = (),
    recipe: Recipe | None = None,
    minutes: float = 30.0,
    steps: int | None = None,
    seeds: int = 3,
    only: Sequence[str] = (),
    out: StrPath | None = None,
    plan: bool = False,
    command: str = "vitkit.reproduce(...)",
    **machine: Unpack[MachineOptions],
) -> Reproduction | study.StudyPlan:
    """Reproduce a figure or table of the paper here: vitkit reproduce table8 --minutes 30.

    Its runs have the same seeds and images, and the page says whether the paper's conclusion holds at this
    size. Stopped anywhere, the same command goes on. vitkit reproduce alone says what there is.

    Args:
        item: the figure or table of the paper: fig2 to fig11, fig13, fig14, table2, table5 to table9, or ssl
            (4.6); vitkit reproduce alone describes each.
        data: images with labels to train on: digits (built in), a folder of class folders, a .csv or a folder
            of .parquet; for table9 and fig2 the folder of VTAB-1k's tasks.
        start: a run folder or checkpoint, for items that train none from scratch; fig10 takes several.
        images: image files or folders for pictures of attention; left out, test images of the run.
        recipe: the base of the runs, a ViT; left out, that of digits, with 32x32 pixels for other images; for
            table2 and table5 the paper's fine-tuning. From Python also a Run.
        minutes: of all runs together: the speed of this machine is measured before the first one, and decides
            their steps once and for all.
        steps: number of updates of the base, in place of `minutes`.
        seeds: runs of each arm, with the same seeds in all arms.
        only: arms to train, with commas between, as --plan names them; left out, all. Conclusions about other
            arms are left out.
        out: folder for the runs and the page; left out, runs/reproduce-ITEM-DATA. The same command again
            continues there.
        plan: list what is trained and the time it takes here, and train nothing.
        command: continues the study; its record has it.
        machine: what trains, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Returns:
        The result, and the folder; `report.html` in it shows our numbers beside the paper's. With `plan` the
        runs and their time.

    Raises:
        VitkitError: a start or images are needed and were not given, an arm cannot be trained, or `out` holds
            something else.
        InterruptedTraining: a signal stopped it; the same call continues.

    Unstable: its parameters and what it returns may change in any release.
    """
    trained_by = StudyOptions(command=command, **machine)
    require_threads(trained_by.threads)
    if item not in ITEMS:
        raise VitkitError(
            f"No figure or table that can be reproduced is named '{item}'. {config.nearest(item, ITEMS)}"
        )
    shown, starts = ITEMS[item], as_names(start)
    options = Request(item, minutes, steps, seeds, as_names(only))
    if not starts and shown.needs_start:
        raise VitkitError(f"{shown.title} needs {shown.needs}: give them, or choose another figure or table.")
    if data == "digits" and item in VTAB:
        raise VitkitError(
            "VTAB-1k needs the folder of its tasks, and digits is none: give --data FOLDER, with a folder "
            "for each task, such as cifar/ and dtd/."
        )
    if starts and not shown.needs_start:
        raise VitkitError(f"{shown.title} takes no --start: leave it out.")
    if len(starts) > 1 and not shown.pictures:
        raise VitkitError(
            f"{shown.title} is about one checkpoint, found {len(starts)}: give one --start, and another "
            "--out for each of the others."
        )
    name = Path(starts[0] if starts else data).name or "data"
    # Absolute, because some arms start from the runs of others in it.
    folder = Path(out if out is not None else Path("runs") / f"reproduce-{item}-{name}").absolute()
    if shown.design:
        return _train(make_base_run(item, recipe, data, starts), options, folder, plan, trained_by)
    if plan:
        return study.StudyPlan((), (f"{shown.title}. Needs {shown.needs}.", f"Here: {shown.here}."))
    recorded = {"data": data, "start": list(starts), "images": [str(path) for path in images]}
    with study.new_study(options.kind, command, config.to_json(options) | recorded, ()).claim(folder):
        if shown.pictures:
            result = _draw(Reproduction(folder, shown), starts, images, trained_by)
        else:
            if item == "table6":
                measured: Result = cost.count_table6()
            else:
                refuse_link(folder / "vtab")  # the study may be somebody else's
                measured = vtab.vtab(starts[0], data, out=folder / "vtab", steps=steps, **machine)
            said = vtab.remarks(measured) if isinstance(measured, vtab.Vtab) else ()
            answer = (measured.summary(), *said)
            blocks = [block for block in measured.blocks() if block and block not in answer]
            part, numbers = Section("Here", blocks), without_places(measured.to_json())
            result = Reproduction(folder, shown, answer, (part,), collected=numbers)
        return _publish(result, ["vtab"], trained_by)


def _train(
    run: Run, options: Request, folder: Path, plan: bool, trained_by: StudyOptions
) -> Reproduction | study.StudyPlan:
    """Train the arms of a study whose base is a run, and compare them; with `plan` list them."""
    listener, item = trained_by.listener, ITEMS[options.item]
    base, variants, opened = make_design(run, options, folder, listener)
    length = None if plan else study.read_chosen(Length, folder, options.kind)
    if length is None:
        length, paces = _measure(options, base, variants, opened, trained_by)
        if plan:
            arms, needs = make_arms(base, variants, length.length), f"{item.title}. Needs {item.needs}."
            return study.plan_arms(arms, trained_by, opened, needs, paces=paces, folder=folder)
        steps = f"{pluralize(length.length, 'step')} of the base, fixed for this study"
        listener.show([("length", [steps])])
    recorded = config.to_json(options) | config.to_json(length)
    arms = make_arms(base, variants, length.length)
    record = study.new_study(options.kind, trained_by.command, recorded, arms)
    with record.claim(folder):
        completed = study.complete_arms(record.arms, folder, trained_by)
        with listener.progress("comparing the arms"):
            result = _compare(options, base, variants, record.arms, completed, length)
        # Arms that learn without labels are compared by the few-shot accuracy of their frozen features, by
        # the paper's ridge regression (4.1).
        without = [arm for arm in record.arms if find_task(arm.run.task).answering is None]
        finals = {arm.label: folder / arm.folder / "final" for arm in without}
        # A run that diverged has no weights.
        models = {label: path for label, path in finals.items() if (path / "model.safetensors").exists()}
        if models:
            by: Any = {"methods": ("ridge",), "device": trained_by.device, "listener": listener}
            by["cache"] = False  # the features of these models are used once
            measured = fewshot.fewshot(tuple(map(str, models.values())), base.run.data, shots=SHOTS, **by)
            named = zip(models, measured.models, strict=True)
            measured = replace(measured, models=tuple(replace(model, name=label) for label, model in named))
            part = Section("Few-shot accuracy before fine-tuning", measured.blocks())
            numbers = without_places(measured.to_json())
            result = replace(result, own=(*result.own, part), collected=numbers)
        return _publish(result, [arm.folder for arm in record.arms], trained_by)


def _publish(result: Reproduction, folders: Sequence[str], options: StudyOptions) -> Reproduction:
    """Write a result, and its page beside the paper's numbers, and say where it is."""
    config.write(result.folder / "result.json", result.to_json())
    study.publish(result, folders, options)
    options.listener.show([("report", [str(result.folder / "report.html")])])
    return result


# --- the arms ---


def make_design(
    run: Run, options: Request, folder: Path, listener: Listener
) -> tuple[Base, Sequence[Variant], Opened]:
    """Make the base and the arms of a study, and return them with the images of the base.

    Raises:
        VitkitError: there are no such images, no such arm, or the base is no ViT.
    """
    item = ITEMS[options.item]
    with listener.progress("listing images"):
        data = list_images(run)
    if not {"test", "val"} & set(data.splits):
        raise VitkitError(
            f"Arms are compared on test images, and {run.data} has none: give it a test split, or a --recipe "
            "that cuts one."
        )
    make_base = Base if item.needs_start else base_of  # only a base without a start must be a plain ViT
    base = make_base(run, len(data.class_names), len(data.splits["train"]), folder)
    variants: Sequence[Variant] = getattr(designs, item.design)(base)
    names = [variant.name for variant in variants]
    for name in options.only:
        if name not in names:
            raise VitkitError(f"{item.title} has no arm named '{name}'. {config.nearest(name, names)}")
    chosen = (each for each in variants if not options.only or each.name in options.only)
    variants = tuple(replace(variant, seeds=variant.seeds or options.seeds) for variant in chosen)
    if not any(find_task(variant.run.task).answering for variant in variants):
        raise VitkitError("--only names no arm that learns from labels: add one to compare, as --plan lists.")
    return base, variants, Opened(run, data)


def make_base_run(item: ItemName, recipe: Recipe | None, data: str, starts: Sequence[str]) -> Run:
    """Make the run of the base: a small ViT, or the paper's fine-tuning of the start.

    Raises:
        VitkitError: there is no such recipe, or it does not suit a study.
    """
    needs_start = ITEMS[item].needs_start
    usual = "paper" if needs_start else "digits"
    run = recipe if isinstance(recipe, Run) else recipes.recipe(recipe or usual)
    if needs_start:
        run = replace(run, data=data, start=StartConfig(starts[0]))
        if item == "table2" and run.recipe == "finetune-imagenet":
            # Table 2 fine-tunes on ImageNet (4.1) at 512 or, by patches of 14, 518 pixels, with averaging.
            patch = getattr(model_config(describe_start(run).model), "patch_size", None)  # a ResNet has none
            side = 518 if patch == (14, 14) else 512
            preprocessing = replace(run.preprocessing, image_size=(side, side))
            run = replace(run, preprocessing=preprocessing, optimizer=replace(run.optimizer, polyak=0.9999))
        return run
    if recipe is None:
        # The recipe's model with the width of its MLP in the name: the arms change all of the shape. A tenth
        # is cut for validation, which chooses rates, regularisation and weights.
        run = replace(run, model="ViT-64x4x4x128/4", architecture=Architecture(), splits=Splits())
        if data != "digits":
            run = replace(run, preprocessing=Preprocessing(image_size=(SMALL_SIDE, SMALL_SIDE)))
    if run.start.start or find_task(run.task).answering is None:
        obstacle = f"the start {run.start.start}" if run.start.start else f"the task {run.task}"
        raise VitkitError(
            f"The base of a study is trained from scratch on images with labels, found {obstacle}: give a "
            "--recipe without a start, of a task with labels."
        )
    if not isinstance(recipe, Run) or not run.data:  # a Run has images of its own
        run = replace(run, data=data)
    return run


def make_arms(base: Base, variants: Sequence[Variant], length: int) -> tuple[study.Arm, ...]:
    """Make the arms of a study whose base trains for `length` steps."""
    arms = []
    for variant in variants:
        steps = max(1, round(length * variant.length))
        # With the number of the base's images, so that warm-up is the same fraction of the steps of an arm on
        # fewer images.
        run = budget.with_steps(variant.run, steps, base.num_images)
        validations = VALIDATIONS if run.training.select == "best" else 1
        every, commits = math.ceil(steps / validations), math.ceil(steps / CHECKPOINTS)
        training = replace(run.training, minutes=None, evaluate_every=every, checkpoint_every=commits, keep=1)
        series = study.arm_series(variant.seeds, variant.rates)
        arms.append(study.Arm(variant.name, variant.label, replace(run, training=training), series))
    return tuple(arms)


# --- the length ---


def _measure(
    options: Request, base: Base, variants: Sequence[Variant], opened: Opened, trained_by: StudyOptions
) -> tuple[Length, dict[str, budget.Pace]]:
    """Choose the steps of the base so that all runs together take the given minutes; return the paces too.

    Raises:
        VitkitError: an arm cannot be trained, before any is measured.
    """
    arms = make_arms(base, variants, 1)
    # The start of an arm that begins from another arm is not there yet.
    ready = [arm for arm in arms if not study.begins_within(arm.run, base.folder)]
    study.check_arms(ready, trained_by, opened)
    paces = study.measure_paces({arm.folder: arm.run for arm in arms}, trained_by, opened)

    def seconds(length: int) -> float:
        total = 0.0
        for arm in make_arms(base, variants, length):
            total += arm.series.num_runs * study.run_seconds(arm.run, paces[arm.folder], opened.images)
        return total

    steps = options.steps
    if steps is None:
        # The time grows evenly with the steps, from that of validations and tests.
        once, twice = seconds(LONG), seconds(2 * LONG)
        left = PLANNED * 60 * options.minutes - (2 * once - twice)
        steps = max(1, math.floor(left * LONG / (twice - once)))
        if steps < FEW_STEPS:
            trained_by.listener.warn(
                f"{options.minutes:g} minutes are {pluralize(steps, 'step')} of the base, which teach "
                "little: give more --minutes, fewer --seeds, or some of the arms with --only."
            )
    batch, is_timed = arms[0].run.training.batch_size, options.steps is None or ITEMS[options.item].timed
    return Length(steps, {name: batch / pace.step for name, pace in paces.items() if is_timed}), paces


# --- the result ---


def _compare(
    options: Request,
    base: Base,
    variants: Sequence[Variant],
    arms: Sequence[study.Arm],
    completed: Sequence[series_record.Series],
    length: Length,
) -> Reproduction:
    """Compare the arms of a study with the first one, and test the paper's conclusions with them."""
    all_pairs = zip(arms, completed, strict=True)
    # An arm answers test images if it learns from labels.
    pairs = [(arm, series) for arm, series in all_pairs if find_task(arm.run.task).answering is not None]
    answering, ended = zip(*pairs, strict=True)
    scored = study.read_scores(base.folder, answering, ended)
    comparison = study.compare_scored(scored, answering, ended, [member.seed for member in ended[0].members])
    scores = {arm.folder: rows for arm, rows in zip(answering, scored.scores, strict=True)}
    validation = {arm.folder: _mean_validation_score(base.folder, arm, series) for arm, series in pairs}
    rows = []
    for variant, arm in zip(variants, arms, strict=True):
        of_arm, mean, interval = scores.get(arm.folder, {}), None, None
        if of_arm:
            stacked = np.stack(list(of_arm.values()))
            # The difference from zeros is the mean, with an interval over seeds and images.
            score = statistics.paired_difference(np.zeros_like(stacked), stacked)
            mean, interval = score.mean, (max(0.0, score.interval[0]), min(1.0, score.interval[1]))
        row = ArmRow(
            name=arm.folder,
            label=arm.label,
            line=variant.line,
            x=variant.x,
            steps=arm.run.training.total_steps(base.num_images),
            flops=flops(arm.run, base.num_classes) if arm.run.model else None,
            images_per_second=length.speed.get(arm.folder),
            mean=mean,
            interval=interval,
            validation=validation.get(arm.folder),
        )
        rows.append(row)
    run = base.run
    item = ITEMS[options.item]
    findings = judge(item.claims, scores, validation)
    models = list(dict.fromkeys(variant.run.model for variant in variants))
    setting = {
        "data": f"{Path(run.data).name}: {base.num_images:,} training images, {base.num_classes} classes",
        "model": (models[0] + (" and others" if len(models) > 1 else "")) or "the start's",
        "image size": f"{format_size(run.preprocessing.image_size)} pixels",
        "batch": f"{run.training.batch_size:,} images",
        "steps": f"{length.length:,} of the base",
        "measured": "top-1 accuracy on the test images after this training",
    }
    return Reproduction(
        folder=base.folder,
        item=item,
        answer=tuple(_sentences(findings, rows, comparison, options.seeds)),
        own=tuple(_sections(rows, options.seeds, item, comparison)),
        findings=tuple(findings),
        arms=tuple(rows),
        comparison=comparison,
        setting=setting,
    )


def _sentences(
    findings: Sequence[Finding], rows: Sequence[ArmRow], comparison: study.Comparison, seeds: int
) -> Iterator[str]:
    """Say whether the paper's conclusions hold; where nothing is compared, give the accuracy of each arm."""
    if summary := summarise(findings):
        yield summary
    labels = {row.name: row.label for row in rows}
    for finding in findings:
        names, chosen = (*finding.claim.more, *finding.claim.less), (*finding.more, *finding.less)
        # A name that ends in * stands for several arms (`Claim`), of which the validation chose one.
        several = [labels[arm] for name, arm in zip(names, chosen, strict=True) if name.endswith("*")]
        yield say(finding, comparison) + (f" Chosen by validation: {'; '.join(several)}." if several else "")
    for row in () if findings else rows:
        if row.mean is not None and row.interval is not None:
            accuracy = f"{row.mean:.1%} {statistics.describe_interval(row.interval)}"
            yield f"{row.label}: {comparison.score} {accuracy} on {comparison.images:,} images."
    if seeds == 1:
        yield (
            "One seed is about these weights only, and says nothing about other trainings: give --seeds 3 or "
            "more for that."
        )


def _mean_validation_score(folder: Path, arm: study.Arm, series: series_record.Series) -> float:
    """Compute the mean score of an arm on validation images; -1, below every score, where there is none."""
    answering = find_task(arm.run.task).answering
    assert answering is not None
    runs = [folder / arm.folder / member.folder for member in series.members if member.score is not None]
    read = [trained_model.read_evaluations(run, answering).get("val") for run in runs]
    means = [float(answering.score_images(each[1]).mean()) for each in read if each is not None]
    return float(np.mean(means)) if means else -1.0


def _sections(
    arms: Sequence[ArmRow], seeds: int, item: Item, comparison: study.Comparison
) -> Iterator[Section]:
    """Make the sections on a study's own numbers: along the figure's axis, or as differences."""
    sample = (
        f"{pluralize(seeds, 'seed')} on {comparison.describe()}; the intervals are 95 %, over seeds "
        "and test images."
    )
    if not item.axis:
        against = f"Each arm against {comparison.base.label}, on the same images with the same seeds."
        table, plot = study.arm_table(comparison), study.difference_plot(comparison)
        yield Section("Here", (table, against if comparison.arms else None, item.shared, sample, plot))
        return

    def number(form: str, value: float | None) -> str | Number:
        return "–" if value is None else Number(form.format(value), value)

    columns: dict[str, Callable[[ArmRow], str | Number]] = {
        "arm": lambda arm: arm.label,
        "million FLOPs": lambda arm: number("{:,.2f}", None if arm.flops is None else arm.flops / 1e6),
        "steps": lambda arm: count_cell(arm.steps),
        "images a second": lambda arm: number("{:,.0f}", arm.images_per_second),
        comparison.score: lambda arm: fraction_cell(arm.mean),
        "95 % interval": lambda arm: interval_cell(arm.interval),
    }
    plot = _line_plot(arms, comparison.score, {arm.name: arm.x for arm in arms}, item.axis)
    yield Section("Here", (table_of(arms, columns), item.shared, sample, plot))
    speeds = {arm.name: arm.images_per_second for arm in arms if arm.images_per_second is not None}
    if item.timed and speeds:
        when = "Images a second in training, as measured here when the study began."
        drawn = _line_plot(arms, comparison.score, speeds, "images a second in training")
        yield Section("Against the speed", (when, drawn))


def _line_plot(arms: Sequence[ArmRow], score: str, places: Mapping[str, float], axis: str) -> Plot | None:
    """Draw the lines of a figure; of several arms at the same point the best by validation.

    Args:
        arms: the arms.
        score: the name of their scores.
        places: the place on the axis of each arm that is drawn, by name.
        axis: its label.
    """
    best: dict[tuple[str, float], ArmRow] = {}
    for arm in sorted(arms, key=lambda arm: arm.validation or 0.0, reverse=True):
        if arm.name in places:
            best.setdefault((arm.line, places[arm.name]), arm)
    lines: dict[str, list[tuple[float, float, tuple[float, float]]]] = {}
    for (line, x), arm in sorted(best.items()):
        if arm.mean is not None and arm.interval is not None:
            lines.setdefault(line, []).append((x, arm.mean, arm.interval))
    draw, alt = partial(line_figure, {"": lines}, axis, score), f"The {score} of the arms, as in the table."
    return Plot(draw, axis.replace(" ", "-"), alt) if lines else None


# --- the results of other verbs ---


def _draw(
    result: Reproduction, starts: Sequence[str], images: Sequence[StrPath], options: StudyOptions
) -> Reproduction:
    """Collect some of the pictures of `vitkit inspect`, by their names, for each start."""
    parts, answer, numbers = [], [], []
    for number, start in enumerate(starts, start=1):
        place, name = result.folder / f"inspect-{number}", Path(start).name
        refuse_link(place)  # the study may be somebody else's
        drawn = inspect.inspect(start, images, out=place, listener=options.listener)
        files = {path.stem: path for path in drawn.pictures if path.suffix == ".png"}
        photos, shown = [], []
        for stem in result.item.pictures:
            title = stem.replace("-", " ").capitalize()
            if stem in files:
                photos.append(Photo(png_address(files[stem].read_bytes()), f"{title}, {name}"))
                shown.append(f"{place.name}/{stem}.png")
            else:
                answer.append(f"{title}: there is no picture of {name}.")
        if drawn.without_attention and len(shown) < len(result.item.pictures):
            answer.append(f"Without attention: {drawn.without_attention}.")
        parts.append(Section(name, photos))
        numbers.append({"start": name, "pictures": shown})
    if any(part.blocks for part in parts):
        answer.insert(0, "Compare the pictures below with the paper's by eye.")
    return replace(result, answer=tuple(answer), own=tuple(parts), collected=numbers)


SHOTS = (5, 10)
"""Images of each class from which the classes are learned, as in the paper (4.1)."""
