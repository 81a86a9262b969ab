"""Judge the paper's conclusions by the arms of a study, or collect the results of other verbs, and show them
beside the paper's numbers.
"""

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from vitkit.analysis.study_figures import line_figure
from vitkit.config import read, to_json
from vitkit.durable import refuse_link, replace_json
from vitkit.evaluation.paired import SURE, PairedDifference, Scores, adjust, compare_scores
from vitkit.jobs.bench import Bench, bench
from vitkit.jobs.cost import count_table6
from vitkit.jobs.fewshot.fewshot import fewshot
from vitkit.jobs.inspect import inspect
from vitkit.jobs.reproduce.designs import Claim, Design
from vitkit.jobs.reproduce.options import ReproduceOptions
from vitkit.jobs.study.study import Comparison, StudyResult, TestImages, arm_table, difference_plot
from vitkit.jobs.vtab.vtab import Vtab, portable_json, remarks, score_table, vtab
from vitkit.report.template import write_page
from vitkit.result import Block, Number, Photo, Plot, Section, Table, table_of
from vitkit.runs.config import shown_command
from vitkit.tasks.page import points, shown_score
from vitkit.text import join_names, pluralize

if TYPE_CHECKING:
    from vitkit.jobs.reproduce.items import Item

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
    difference: PairedDifference | None
    """None where training diverged in every run of an arm."""
    adjusted_p: float | None = None
    """Its p by Holm over all claims but of the kind "alike", which have None."""
    outcome: Outcome | None = None
    """None where the paper concludes nothing."""


def judge(
    claims: Sequence[Claim], scores: Mapping[str, Scores], validation: Mapping[str, float]
) -> list[Finding]:
    """Test each claim with the scores of the arms; claims about arms that were not trained are left out.

    Args:
        claims: of a study.
        scores: of its arms by name, on the same test images.
        validation: mean score of the validation images by arm, by which an arm is chosen.
    """
    findings = []
    for claim in claims:
        more, less = (
            tuple(_choose(name, scores, validation) for name in side) for side in (claim.more, claim.less)
        )
        if "" in (*more, *less):
            continue
        difference = compare_scores([scores[arm] for arm in less], [scores[arm] for arm in more])
        findings.append(Finding(claim, more, less, difference))
    tested = [None if finding.claim.kind == "alike" else finding.difference for finding in findings]
    adjusted = (replace(finding, adjusted_p=p) for finding, p in zip(findings, adjust(tested), strict=True))
    return [replace(finding, outcome=_outcome(finding)) for finding in adjusted]


def _choose(name: str, scores: Mapping[str, Scores], validation: Mapping[str, float]) -> str:
    """Return the arm of a name, of several arms the best by validation; "" where there is no such arm."""
    if not name.endswith("*"):
        return name if name in scores else ""
    arms = [arm for arm in scores if arm.startswith(name[:-1])]
    # Of equal scores the first, in the order of the arms: the same arm every time.
    return max(arms, key=lambda arm: validation.get(arm, -1.0), default="")


def _outcome(finding: Finding) -> Outcome | None:
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
    if finding.adjusted_p is None or finding.adjusted_p >= SURE:
        return "cannot be told"
    return "holds" if difference.mean > 0 else "does not hold"


def summarise(findings: Sequence[Finding]) -> str:
    """Count the outcomes of the paper's conclusions in a sentence; "" where none was tested."""
    outcomes = [finding.outcome for finding in findings if finding.outcome is not None]
    plurals = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}
    counted = [
        pluralize(outcomes.count(outcome), outcome, plurals[outcome])
        for outcome in get_args(Outcome)
        if outcome in outcomes
    ]
    conclusions = pluralize(len(outcomes), "conclusion")
    return f"Of {conclusions} of the paper, {join_names(counted)} at this size." if outcomes else ""


@dataclass(frozen=True)
class ArmRow:
    """The options, cost and scores of an arm; scores are from 0 to 1."""

    name: str
    label: str
    line: str
    x: float
    steps: int
    learning_rate: float | None
    flops: int | None
    """FLOPs of a forward pass for one image; None where a start decides the model."""
    images_per_second: float | None
    """In training, as measured when the study began; None where it was not timed."""
    scores: Mapping[str, float]
    """Mean score of the test images by seed."""
    mean: float | None
    interval: tuple[float, float] | None
    """95 %, over seeds and test images."""
    validation: float | None
    """Mean score of the validation images; -1 where there are none."""


@dataclass(frozen=True, repr=False)
class Reproduction(StudyResult):
    """The result of a study of the paper."""

    title: str
    conclusion: str
    """The paper's."""
    answer: tuple[str, ...]
    """Whether it holds here, in sentences."""
    findings: tuple[Finding, ...] = ()
    arms: tuple[ArmRow, ...] = ()
    images: int | None = None
    """Test images; None where no arm was trained."""
    split: str | None = None
    seeds: int = 0
    setting: Mapping[str, str] = field(default_factory=dict)
    """The data, model and so on: a topic and its value each."""
    collected: Any = None
    """The numbers of other verbs as plain data."""
    parts: tuple[Section, ...] = ()
    """The sections of the page: our numbers, and the paper's."""

    def heading(self) -> str:
        """Name the figure or table, and the folder."""
        return f"{self.title} ({self.folder.name})"

    def headline(self) -> Sequence[str]:
        """Give the conclusions here."""
        return self.answer

    def sections(self) -> Sequence[Section]:
        """Return our numbers, and the paper's."""
        return self.parts

    def summary(self) -> str:
        """Give the conclusions here."""
        return f"{self.title}. {' '.join(self.answer)}"

    def blocks(self) -> Sequence[Block]:
        """Return the paper's conclusion, and whether it holds here."""
        return "", self.title, f"The paper: {self.conclusion}", "", *self.answer

    def to_json(self) -> dict[str, Any]:
        """Return the contents of result.json, without paths of this machine."""
        read = to_json(replace(self, parts=()))
        return {name: value for name, value in read.items() if name not in ("folder", "parts")}


def say(finding: Finding, tested: TestImages) -> str:
    """Write a finding in a sentence: outcome, difference with its interval, and detectable difference."""
    difference, claim = finding.difference, finding.claim
    if difference is None:
        return f"{claim.statement}: cannot be told, because training diverged in every run of an arm."
    low, high = (points(tested, value, signed=True) for value in difference.interval)
    size = f"{points(tested, difference.mean, signed=True)} points (95 % interval {low} to {high})"
    if difference.seed_variance is None or claim.one_pretraining:
        sample = "pre-training of each kind" if claim.one_pretraining else "seed"
        return f"{claim.statement}: this cannot be told from one {sample}, {size} for these weights."
    least = (
        f"a difference of {points(tested, difference.detectable)} points or more would have been found in 8 "
        "of 10 studies of this size"
    )
    if claim.kind == "open":
        sure = finding.adjusted_p is not None and finding.adjusted_p < SURE
        return (
            f"{claim.statement}: {size}."
            if sure
            else f"{claim.statement}: no difference found, {size}; {least}."
        )
    if finding.outcome == "cannot be told":
        margin = f"; alike means within {100 * ALIKE:g} point" if claim.kind == "alike" else ""
        return f"{claim.statement}: this cannot be told at this size, {size}; {least}{margin}."
    return f"{claim.statement}: this {finding.outcome} at this size, {size}."


def study_parts(
    result: Reproduction, design: Design, comparison: Comparison, timed: bool
) -> Iterator[Section]:
    """Make the sections on a study's own numbers.

    Args:
        result: the result of the study.
        design: decides the axis of its figure.
        comparison: of its arms with the first one.
        timed: whether the scores are drawn against the speed of training too.
    """
    sample = (
        f"{pluralize(result.seeds, 'seed')} on {comparison.describe()}; the intervals are 95 %, over seeds "
        "and test images."
    )
    plot = difference_plot(comparison)
    if design.axis:
        places = {arm.name: arm.x for arm in result.arms}
        plot = _line_plot(result.arms, comparison.score, places, design.axis)
    yield Section("Here", (_arm_table(result.arms, comparison), design.shared, sample, plot))
    speeds = {arm.name: arm.images_per_second for arm in result.arms if arm.images_per_second is not None}
    if timed and speeds:
        when = "Images a second in training, as measured here when the study began."
        drawn = _line_plot(result.arms, comparison.score, speeds, "images a second in training")
        yield Section("Against the speed", (when, drawn))
    if not design.axis and comparison.arms:
        against = f"Each arm against {comparison.base.label}, on the same images with the same seeds."
        yield Section("Differences", (arm_table(comparison), against))


def _arm_table(arms: Sequence[ArmRow], tested: Comparison) -> Table:
    def number(form: str, value: float | None) -> str | Number:
        return "–" if value is None else Number(form.format(value), value)

    def interval(arm: ArmRow) -> str:
        low, high = arm.interval or (None, None)
        return "–" if low is None else f"{shown_score(tested, low)} to {shown_score(tested, high)}"

    columns: dict[str, Callable[[ArmRow], str | Number]] = {
        "arm": lambda arm: arm.label,
        "million FLOPs": lambda arm: number("{:,.2f}", None if arm.flops is None else arm.flops / 1e6),
        "steps": lambda arm: Number(f"{arm.steps:,}", arm.steps),
        "images a second": lambda arm: number("{:,.0f}", arm.images_per_second),
        "rate": lambda arm: number("{:g}", arm.learning_rate),
        tested.score: lambda arm: (
            "–" if arm.mean is None else Number(shown_score(tested, arm.mean), arm.mean)
        ),
        "95 % interval": interval,
    }
    return table_of(arms, columns)


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
    if not lines:
        return None
    draw = partial(line_figure, {"": lines}, axis, score)
    return Plot(draw, axis.replace(" ", "-"), f"The {score} of the arms, as in the table.")


def keep(
    result: Reproduction,
    item: "Item",
    parts: Iterable[Section],
    folders: Sequence[str],
    options: ReproduceOptions,
) -> Reproduction:
    """Write a result, and its page beside the paper's numbers, and say where it is.

    Args:
        result: the result.
        item: the figure or table.
        parts: the sections of the page on our numbers.
        folders: within the study's folder, of runs that have a page of their own.
        options: of the study.

    Returns:
        The result with all sections of its page.
    """
    curve = "" if item.paper else " The paper shows a curve or pictures, whose numbers it does not print."
    papers, here = dict(item.setting), result.setting
    rows = tuple((topic, papers.get(topic, "–"), here.get(topic, "–")) for topic in {**papers, **here})
    why = (
        f"The numbers differ because data, model and training do. The paper's size would need: "
        f"{item.at_paper_size}."
    )
    sections = (
        *parts,
        Section("The paper", (f"Its conclusion: {item.conclusion}{curve}",)),
        *(Section(numbers.source, (numbers.table(),)) for numbers in item.paper),
        Section("Why they differ", (Table(("", "paper", "here"), rows), why)),
    )
    result = replace(result, parts=sections)
    replace_json(result.folder / "result.json", result.to_json())
    path, command = result.folder / "report.html", shown_command(options.command)
    write_page(result, path, folders=folders, command=command)
    options.listener.show([("report", [str(path)])])
    return result


@dataclass(frozen=True)
class Collected:
    """The contents of the page of an item that trains no arms."""

    answer: tuple[str, ...] = ()
    parts: tuple[Section, ...] = ()
    numbers: Any = None
    """The same as plain data."""
    folders: tuple[str, ...] = ()
    """Folders within the study's, of runs that have a page of their own."""


def collect_pictures(stems: Sequence[str], options: ReproduceOptions, folder: Path) -> Collected:
    """Collect some of the pictures of `vitkit inspect`, by their names, for each start."""
    parts: list[Section] = []
    answer, numbers = [], []
    for number, start in enumerate(options.starts, start=1):
        place, name = folder / f"inspect-{number}", Path(start).name
        refuse_link(place)  # the study may be somebody else's
        drawn = inspect(start, options.images, out=place, listener=options.listener)
        files = {path.stem: path for path in drawn.pictures if path.suffix == ".png"}
        titles = {stem: stem.replace("-", " ").capitalize() for stem in stems}
        sentences = [f"{titles[stem]}: there is no picture of {name}." for stem in stems if stem not in files]
        if drawn.without_attention and any("attention" in stem for stem in {*stems} - {*files}):
            sentences.append(f"Without attention: {drawn.without_attention}.")
        present = [stem for stem in stems if stem in files]
        encoded = {stem: base64.b64encode(files[stem].read_bytes()).decode() for stem in present}
        pictures = [
            Photo(f"data:image/png;base64,{data}", f"{titles[stem]}, {name}")
            for stem, data in encoded.items()
        ]
        parts.append(Section(name, (*sentences, *pictures)))
        numbers.append({"start": name, "pictures": [f"inspect-{number}/{stem}.png" for stem in present]})
        answer += sentences
    if any(entry["pictures"] for entry in numbers):
        answer.insert(0, "The pictures below are of this model; compare them with the paper's by eye.")
    return Collected(tuple(answer), tuple(parts), numbers)


def collect_vtab(options: ReproduceOptions, folder: Path) -> Collected:
    """Fine-tune a start on the tasks of VTAB-1k that have a folder."""
    refuse_link(folder / "vtab")  # the study may be somebody else's
    result = vtab(
        options.starts[0],
        options.data,
        out=folder / "vtab",
        steps=options.steps,
        device=options.device,
        threads=options.threads,
        listener=options.listener,
    )
    assert isinstance(result, Vtab)
    mean = result.mean()
    answer = [] if mean is None else [f"The mean accuracy is {mean.accuracy:.1%} over {mean.tasks} tasks."]
    answer += remarks(result)
    part = Section("Here, beside the paper's Table 9", (score_table(result),))
    folders = tuple(f"vtab/{score.folder}/final" for score in result.tasks)
    return Collected(tuple(answer), (part,), portable_json(result), folders)


TIMED = ("ViT-B/32", "ViT-B/16", "BiT-R50x1")
"""Models that are timed without a start: the smallest of the paper's ViTs and of its ResNets."""
SIZES_12 = (64, 128, 224, 384, 512)
"""Pixels a side that the paper's Figure 12 shows (Appendix D.5)."""


def collect_speed(options: ReproduceOptions, folder: Path) -> Collected:
    """Time models at the paper's image sizes, unless `bench.json` has the times already."""
    path = folder / "bench.json"
    measured = read(Bench, path)
    if measured is None:
        models = options.starts or TIMED
        measured = bench(
            *models,
            image_size=SIZES_12,
            minutes=options.minutes / len(models),
            threads=options.threads,
            device=options.device,
            listener=options.listener,
        )
        replace_json(path, measured.to_json())
    sentence = (
        f"Measured on {measured.machine.get('device')}; the paper's curves are of a TPUv3, whose numbers "
        "it does not print."
    )
    numbers = [to_json(record) for record in measured.records]
    return Collected((sentence,), (Section("Here", measured.blocks()[1:]),), numbers)


def collect_compute(options: ReproduceOptions, folder: Path) -> Collected:
    """Count the compute of every row of Table 6."""
    counted = count_table6()
    sentence = f"{counted.summary()} The accuracies need JFT-300M, and are not measured here."
    part = Section("Compute, counted here and printed there", counted.blocks()[:1])
    return Collected((sentence,), (part,), counted.to_json())


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
    measured = fewshot(
        starts,
        data,
        shots=SHOTS,
        methods=("ridge",),
        device=options.device,
        cache=False,  # nobody needs the features of these models again
        listener=options.listener,
    )
    named = tuple(replace(model, name=label) for label, model in zip(models, measured.models, strict=True))
    numbers = {
        model.name: {
            f"{score.shots} shots": {"mean": score.mean, "interval": score.interval} for score in model.scores
        }
        for model in named
    }
    how = (
        "Ridge regression on the frozen features of a few images of each class, the mean of "
        f"{measured.seeds} draws, tested on {measured.test_images:,} images; guessing would be right on "
        f"{measured.chance:.1%}."
    )
    shown = (*replace(measured, models=named).blocks(), how)
    return Collected((), (Section("Few-shot accuracy before fine-tuning", shown),), numbers)
