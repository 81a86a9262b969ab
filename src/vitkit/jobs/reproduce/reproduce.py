"""Reproduce a figure or a table of the paper: train its arms, or measure a checkpoint, and compare.

OUT/study.json    the options, the arms, and the steps that this machine has time for, written first
OUT/ARM/          the series of runs of each arm (`jobs/study/study.py`)
OUT/result.json   the result, OUT/report.html the same beside the paper's numbers
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Unpack

import numpy as np

from vitkit.config import COUNT, Positive, Range, nearest, to_json
from vitkit.data.config import Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.evaluation.paired import paired_difference
from vitkit.jobs.options import StrPath, StrPaths
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.reproduce.designs import Base, Design, base_of, flops
from vitkit.jobs.reproduce.items import ITEMS, Item
from vitkit.jobs.reproduce.options import ItemName, ReproduceOptions
from vitkit.jobs.reproduce.page import (
    ArmRow,
    Collected,
    Finding,
    Reproduction,
    collect_few_shot,
    collect_vtab,
    judge,
    keep,
    say,
    study_parts,
    summarise,
)
from vitkit.jobs.study.options import MachineOptions, Recipe
from vitkit.jobs.study.study import (
    Arm,
    Comparison,
    Planned,
    StudyPlan,
    TestImages,
    begins_within,
    check_arms,
    compare_arms,
    complete_arms,
    measure_paces,
    new_study,
    plan_arm,
    read_chosen,
    read_scores,
    run_pages,
    run_seconds,
)
from vitkit.models.zoo import model_config
from vitkit.result import Block
from vitkit.runs.budget import with_steps
from vitkit.runs.config import Architecture, Run, StartConfig
from vitkit.runs.machine import require_threads
from vitkit.runs.plan import Opened, describe_start, list_images
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import Series
from vitkit.tasks import find_task
from vitkit.text import pluralize

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
ONE_START = ("fig2", "table2", "table5", "table9")
"""Items that fine-tune a single checkpoint; items that draw pictures take several."""
SMALL_SIDE = 32
"""Pixels a side of images other than the digits: small enough for a base of two minutes."""


@dataclass(frozen=True)
class Length:
    """The measured options of a study, fixed when it begins."""

    length: Annotated[int, Range("a number of steps", 1, COUNT)]
    """Steps of the base."""
    speed: Mapping[str, Positive]
    """Images a second in training, by arm."""


@dataclass(frozen=True, repr=False, kw_only=True)
class ReproductionPlan(StudyPlan):
    """The runs of a study that has not begun, and its needs."""

    item: ItemName

    def blocks(self) -> Sequence[Block]:
        """Return the figure or table, its needs, and the runs; of one that trains none, the time."""
        item = ITEMS[self.item]
        runs = super().blocks() if self.arms else (f"Here: {item.here}.",)
        return item.title, f"Needs {item.needs}.", *runs

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain data."""
        return {"item": self.item, "needs": ITEMS[self.item].needs, **super().to_json()}


def reproduce(
    item: ItemName,
    *,
    data: str = "digits",
    start: StrPaths = (),
    images: Sequence[StrPath] = (),
    recipe: Recipe | None = None,
    minutes: float = 30.0,
    steps: int | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    out: StrPath | None = None,
    plan: bool = False,
    command: str = "vitkit.reproduce(...)",
    **machine: Unpack[MachineOptions],
) -> Reproduction | ReproductionPlan:
    """Reproduce a figure or table of the paper here: vitkit reproduce table8 --minutes 30.

    Its runs have the same seeds and images, and the page says whether the paper's conclusion holds at this
    size. Stopped anywhere, the same command goes on. vitkit reproduce --list says what there is.

    Args:
        item: the figure or table of the paper: fig2 to fig14, table2, table5 to table9, or ssl (4.6); --list
            describes each.
        data: images with labels to train on: digits (built in), a folder of class folders, a .csv or a folder
            of .parquet; for table9 and fig2 the folder of VTAB-1k's tasks.
        start: a run folder or checkpoint, for items that train none from scratch; fig10 takes several.
        images: image files or folders for pictures of attention; left out, test images of the run.
        recipe: the base of the runs, a ViT; left out, that of digits, with 32x32 pixels for other images; for
            table2 and table5 the paper's fine-tuning. From Python also a Run.
        minutes: of all runs together: the speed of this machine is measured before the first one, and decides
            their steps once and for all.
        steps: number of updates of the base, in place of `minutes`.
        seeds: runs of each arm; left out, 3, or 2 where there are very many arms.
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
    """
    options = ReproduceOptions(
        item=item,
        data=data,
        start=start,
        images=images,
        recipe=recipe,
        minutes=minutes,
        steps=steps,
        seeds=seeds,
        only=only,
        out=out,
        command=command,
        **machine,
    )
    require_threads(options.threads)
    study = ITEMS[item]
    if not options.starts and study.needs_start:
        raise VitkitError(f"{study.title} needs {study.needs}: give them, or choose another of --list.")
    if data == "digits" and study.collect is collect_vtab:
        raise VitkitError(
            "VTAB-1k needs the folder of its tasks, and digits is none: give --data FOLDER, with a folder "
            "for each task, such as cifar/ and dtd/."
        )
    if len(options.starts) > 1 and item in ONE_START:
        raise VitkitError(
            f"{study.title} is about one checkpoint, found {len(options.starts)}: give one --start, and "
            "another --out for each of the others."
        )
    name = Path(options.starts[0] if options.starts else data).name or "data"
    # Absolute, because some arms start from the runs of others in it.
    folder = Path(out if out is not None else Path("runs") / f"reproduce-{item}-{name}").absolute()
    if study.collect is None:
        return _train(options, study, folder, plan)
    if plan:
        return ReproductionPlan((), item=item)
    recorded = {name: getattr(options, name) for name in ("item", "data", "steps", "minutes")}
    recorded |= {"start": list(options.starts), "images": [str(path) for path in images]}
    with new_study(options.kind, command, recorded, ()).claim(folder):
        other = study.collect(options, folder)
        result = Reproduction(folder, study.title, study.conclusion, other.answer, collected=other.numbers)
        return keep(result, study, other.parts, other.folders, options)


def _train(
    options: ReproduceOptions, item: Item, folder: Path, plan: bool
) -> Reproduction | ReproductionPlan:
    """Train the arms of a study and compare them; with `plan` list them."""
    listener = options.listener
    base, design, opened = make_design(options, item, folder)
    length = None if plan else read_chosen(Length, folder, options.kind)
    if length is None:
        length, planned = _measure(options, item, base, design, opened)
        if plan:
            return ReproductionPlan(planned, item=options.item)
        steps = f"{pluralize(length.length, 'step')} of the base, fixed for this study"
        listener.show([("length", [steps])])
    seeds = options.seeds or item.seeds
    recorded = {
        "item": options.item,
        "minutes": options.minutes if options.steps is None else None,
        "steps": options.steps,
        "seeds": seeds,
        "only": list(options.only),
        **to_json(length),
    }
    study = new_study(options.kind, options.command, recorded, make_arms(base, design, length.length))
    with study.claim(folder):
        completed = complete_arms(study.arms, folder, options)
        # Arms that learn without labels are compared by the few-shot accuracy of their features.
        finals = {arm.label: folder / arm.folder / "final" for arm in study.arms if not _is_tested(arm)}
        # A run that diverged has no weights.
        pretrained = {label: path for label, path in finals.items() if (path / "model.safetensors").exists()}
        few_shot = collect_few_shot(options, base.run.data, pretrained) if pretrained else Collected()
        with listener.progress("comparing the arms"):
            result, tested = _compare(folder, item, base, design, study.arms, completed, length, seeds)
            result = replace(result, collected=few_shot.numbers)
            parts = (*study_parts(result, design, tested, item.timed), *few_shot.parts)
            return keep(result, item, parts, run_pages(folder, study.arms), options)


# --- the arms ---


def make_design(options: ReproduceOptions, item: Item, folder: Path) -> tuple[Base, Design, Opened]:
    """Make the base and the arms of a study, and return them with the images of the base.

    Raises:
        VitkitError: there are no such images, no such arm, or the base is no ViT.
    """
    assert item.design is not None
    run = _base_run(options, item)
    with options.listener.progress("listing images"):
        data = list_images(run)
    if not {"test", "val"} & set(data.splits):
        raise VitkitError(
            f"Arms are compared on test images, and {run.data} has none: give it a test split, or a --recipe "
            "that cuts one."
        )
    make_base = Base if item.needs_start else base_of  # only a base without a start must be a plain ViT
    base = make_base(run, len(data.class_names), len(data.splits["train"]), folder)
    design = item.design(base)
    names = [variant.name for variant in design.variants]
    for name in options.only:
        if name not in names:
            raise VitkitError(f"{item.title} has no arm named '{name}'. {nearest(name, names)}")
    variants = tuple(
        replace(variant, seeds=variant.seeds or options.seeds or item.seeds)
        for variant in design.variants
        if not options.only or variant.name in options.only
    )
    return base, replace(design, variants=variants), Opened(run, data)


def _base_run(options: ReproduceOptions, item: Item) -> Run:
    """Make the run of the base: a small ViT, or the paper's fine-tuning of the start.

    Raises:
        VitkitError: there is no such recipe, or it does not suit a study.
    """
    recipe = options.recipe
    run = (
        recipe
        if isinstance(recipe, Run)
        else named_recipe(recipe or ("paper" if item.needs_start else "digits"))
    )
    if item.needs_start:
        run = replace(run, data=options.data, start=StartConfig(options.starts[0]))
        if options.item == "table2" and run.recipe == "finetune-imagenet":
            # Table 2 fine-tunes on ImageNet (4.1) at 512 or, by patches of 14, 518 pixels, with averaging.
            patch = getattr(model_config(describe_start(run).model), "patch_size", None)  # a ResNet has none
            side = 518 if patch == (14, 14) else 512
            preprocessing = replace(run.preprocessing, image_size=(side, side))
            run = replace(run, preprocessing=preprocessing, optimizer=replace(run.optimizer, polyak=0.9999))
        return run
    if recipe is None:
        run = replace(
            run,
            # The recipe's model with the width of its MLP in the name: the arms change all of the shape.
            model="ViT-64x4x4x128/4",
            architecture=Architecture(),
            splits=Splits(),  # a tenth for validation: it chooses rates, regularisation and weights
        )
        if options.data != "digits":
            run = replace(run, preprocessing=Preprocessing(image_size=(SMALL_SIDE, SMALL_SIDE)))
    if run.start.start or find_task(run.task).answering is None:
        obstacle = f"the start {run.start.start}" if run.start.start else f"the task {run.task}"
        raise VitkitError(
            f"The base of a study is trained from scratch on images with labels, found {obstacle}: give a "
            "--recipe without a start, of a task with labels."
        )
    if not isinstance(recipe, Run) or not run.data:  # a Run has images of its own
        run = replace(run, data=options.data)
    return run


def make_arms(base: Base, design: Design, length: int) -> tuple[Arm, ...]:
    """Make the arms of a study whose base trains for `length` steps."""
    arms = []
    for variant in design.variants:
        steps = max(1, round(length * variant.length))
        # With the number of the base's images, so that warm-up is the same fraction of the steps of an arm on
        # fewer images.
        run = with_steps(variant.run, steps, base.num_images)
        training = replace(
            run.training,
            minutes=None,
            evaluate_every=math.ceil(steps / (VALIDATIONS if run.training.select == "best" else 1)),
            checkpoint_every=math.ceil(steps / CHECKPOINTS),
            keep=1,
        )
        series = SeriesOptions(sweep_rates=variant.rates, runs=variant.seeds)
        arms.append(Arm(variant.name, variant.label, replace(run, training=training), series))
    return tuple(arms)


# --- the length ---


def _measure(
    options: ReproduceOptions, item: Item, base: Base, design: Design, opened: Opened
) -> tuple[Length, tuple[Planned, ...]]:
    """Choose the steps of the base so that all runs together take the given minutes, and plan the arms.

    Raises:
        VitkitError: an arm cannot be trained, before any is measured.
    """
    arms = make_arms(base, design, 1)
    # The start of an arm that begins from another arm is not there yet.
    check_arms([arm for arm in arms if not begins_within(arm.run, base.folder)], options, opened)
    paces = measure_paces({variant.name: variant.run for variant in design.variants}, options, opened)

    def planned(length: int) -> tuple[Planned, ...]:
        return tuple(
            plan_arm(
                arm,
                arm.run.training.total_steps(base.num_images),
                run_seconds(arm.run, paces[arm.folder], opened.images),
            )
            for arm in make_arms(base, design, length)
        )

    steps = options.steps
    speed = {name: arms[0].run.training.batch_size / pace.step for name, pace in paces.items()}
    if steps is None:
        # The time grows evenly with the steps, from that of validations and tests.
        once, twice = (sum(arm.seconds for arm in planned(length)) for length in (LONG, 2 * LONG))
        seconds = PLANNED * 60 * options.minutes - (2 * once - twice)
        steps = max(1, math.floor(seconds * LONG / (twice - once)))
        if steps < FEW_STEPS:
            options.listener.warn(
                f"{options.minutes:g} minutes are {pluralize(steps, 'step')} of the base, which teach "
                "little: give more --minutes, fewer --seeds, or some of the arms with --only."
            )
    elif not item.timed:
        speed = {}
    return Length(steps, speed), planned(steps)


# --- the result ---


def _compare(
    folder: Path,
    item: Item,
    base: Base,
    design: Design,
    arms: Sequence[Arm],
    completed: Sequence[Series],
    length: Length,
    seeds: int,
) -> tuple[Reproduction, Comparison]:
    """Compare the arms of a study with the first one, and test the paper's conclusions with them."""
    pairs = [(arm, series) for arm, series in zip(arms, completed, strict=True) if _is_tested(arm)]
    tested = read_scores(folder, *zip(*pairs, strict=True))
    scores = {arm.folder: rows for (arm, _), rows in zip(pairs, tested.scores, strict=True)}
    validation = {arm.folder: _mean_validation_score(folder, arm, series) for arm, series in pairs}
    rows = []
    for variant, arm, series in zip(design.variants, arms, completed, strict=True):
        of_arm = scores.get(arm.folder, {})
        mean, interval = None, None
        if of_arm:
            stacked = np.stack(list(of_arm.values()))
            # The difference from zeros is the mean, with an interval over seeds and images.
            score = paired_difference(np.zeros_like(stacked), stacked)
            mean, interval = score.mean, (max(0.0, score.interval[0]), min(1.0, score.interval[1]))
        rows.append(
            ArmRow(
                name=arm.folder,
                label=arm.label,
                line=variant.line,
                x=variant.x,
                steps=arm.run.training.total_steps(base.num_images),
                learning_rate=series.chosen,
                flops=flops(arm.run, base.num_classes) if arm.run.model else None,
                images_per_second=length.speed.get(arm.folder),
                scores={str(seed): float(row.mean()) for seed, row in of_arm.items()},
                mean=mean,
                interval=interval,
                validation=validation.get(arm.folder),
            )
        )
    findings = judge(design.claims, scores, validation)
    result = Reproduction(
        folder,
        item.title,
        item.conclusion,
        tuple(_sentences(findings, rows, tested, seeds)),
        tuple(findings),
        tuple(rows),
        tested.images,
        tested.split,
        seeds,
        _setting(base, design, length),
    )
    return result, compare_arms(folder, *zip(*pairs, strict=True))


def _sentences(
    findings: Sequence[Finding], rows: Sequence[ArmRow], tested: TestImages, seeds: int
) -> Iterator[str]:
    """Say whether the paper's conclusions hold; where nothing is compared, give the accuracy of each arm."""
    if summary := summarise(findings):
        yield summary
    labels = {row.name: row.label for row in rows}
    for finding in findings:
        names, chosen = (*finding.claim.more, *finding.claim.less), (*finding.more, *finding.less)
        # A name that ends in * stands for several arms (`Claim`), of which the validation chose one.
        several = [labels[arm] for name, arm in zip(names, chosen, strict=True) if name.endswith("*")]
        yield say(finding, tested) + (f" Chosen by validation: {'; '.join(several)}." if several else "")
    for row in () if findings else rows:
        if row.mean is not None and row.interval is not None:
            low, high = row.interval
            yield (
                f"{row.label}: {tested.score} {row.mean:.1%} (95 % interval {low:.1%} to {high:.1%}) on "
                f"{tested.images:,} images."
            )
    if seeds == 1:
        yield (
            "One seed is about these weights only, and says nothing about other trainings: give --seeds 3 or "
            "more for that."
        )


def _is_tested(arm: Arm) -> bool:
    """Whether an arm answers test images, as it does if it learns from labels."""
    return find_task(arm.run.task).answering is not None


def _mean_validation_score(folder: Path, arm: Arm, series: Series) -> float:
    """Compute the mean score of an arm on validation images; -1, below every score, where there is none."""
    answering = find_task(arm.run.task).answering
    assert answering is not None
    means = []
    for member in series.members:
        path = folder / arm.folder / member.folder / "evaluation" / "val.json"
        if member.score is not None and path.exists():
            _, predictions = answering.read_evaluation(path)
            means.append(float(answering.score_images(predictions).mean()))
    return float(np.mean(means)) if means else -1.0


def _setting(base: Base, design: Design, length: Length) -> dict[str, str]:
    """List the data, model and sizes of a study, to show them beside the paper's."""
    run = base.run
    models = list(dict.fromkeys(variant.run.model for variant in design.variants))
    height, width = run.preprocessing.image_size
    return {
        "data": f"{Path(run.data).name}: {base.num_images:,} training images, {base.num_classes} classes",
        "model": (models[0] + (" and others" if len(models) > 1 else "")) or "the start's",
        "image size": f"{height}x{width} pixels",
        "batch": f"{run.training.batch_size:,} images",
        "steps": f"{length.length:,} of the base",
        "measured": "top-1 accuracy on the test images after this training",
    }
