"""Ablate a run: change one option at a time, or several in a grid, and measure the effect of each.

All arms have the same seeds, splits, order of images and length of training. The first arm is the base, with
which every other is compared, image by image and seed by seed.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from vitkit.errors import VitkitError
from vitkit.jobs import recipes
from vitkit.jobs.options import MachineOptions, Recipe, StrPath, StudyOptions, Vary
from vitkit.jobs.study import study as studies
from vitkit.models.zoo import ModelConfig
from vitkit.result import Section, Table
from vitkit.runs.config import Architecture, Run, option_value, require_data, with_options
from vitkit.runs.folder import folders_for, numbered_folders
from vitkit.runs.plan import Opened, list_images
from vitkit.tasks import find_task, page
from vitkit.text import join_names, without_places

KIND = "ablation"
ENDING = "-ablation"
MULTIPLES = (1 / 3, 1.0, 3.0)
"""The rates that an arm tries, as multiples of its own. A recipe's rate suits its base: the best rate of
another arm may be higher or lower. They reach less far down than the rates of `--sweep` (0.1 to 3 times),
because a recipe's rate is near the best one of its base, and there are many arms."""
NOT_VARIED = {
    "data": "arms are compared on the same test images",
    "task": "arms are compared by the same measure",
    "recipe": "the recipe is given first, and makes the base",
    "seed": "the seeds are the same in all arms, as many as --seeds",
    "minutes": "by the clock, the same length is another number of steps: vary steps or epochs",
    "evaluate_test": "arms are compared on test images",
}
"""The options that cannot be varied, each with the reason. No option of the splits can be varied either."""
EXPLAINED = (
    "A difference is the mean over seeds of the arm's score less the base's on the same images, in points "
    "(hundredths). Its variance is the variance between seeds over their number, plus that over images. The "
    "p by Holm hold for all arms together.",
    "Detectable is the true difference that 8 of 10 studies of this size find, at p below 0.05 for that arm "
    "alone.",
)
"""The sentences of the page on the columns of the table."""
LONGEST_NAME = 80
"""The most characters of an arm's folder. File systems take 255 bytes a name, and some 260 for a complete
path."""

Settings = Mapping[str, Any]
"""Values by the names of options that are changed together: a value of a varied option, with joined ones."""


@dataclass(frozen=True, repr=False)
class Ablation(studies.StudyResult):
    """The result of an ablation."""

    base: str
    """A sentence that describes the base."""
    rates: str
    """A sentence about the choice of each arm's learning rate."""
    vary: Mapping[str, tuple[str, ...]]
    """The values of each varied option, the base's first."""
    comparison: studies.Comparison
    data: str
    """The name of the data set."""

    def heading(self) -> str:
        """Name the varied options and the data."""
        return f"Ablation of {join_names([name.replace('_', ' ') for name in self.vary])} on {self.data}"

    def headline(self) -> Sequence[str]:
        """Compare each arm with the base."""
        return studies.conclusions(self.comparison)

    def sections(self) -> Sequence[Section]:
        """Return the arms, the means of a grid of two options, and how to read them."""
        comparison, cells = self.comparison, list[Section]()
        results, values = [comparison.base, *comparison.arms], list(self.vary.values())
        if len(values) == 2 and len(results) == len(values[0]) * len(values[1]):  # in the order of `product`
            (first, rows), (second, columns) = self.vary.items()
            means = iter([page.shown_score(comparison.images, arm.mean) for arm in results])
            headings = (first, *(f"{second} {value}" for value in columns))
            table = Table(headings, tuple((row, *itertools.islice(means, len(columns))) for row in rows))
            cells = [Section(f"Mean {comparison.score} by value", (table,), page_only=True)]
        arms = (studies.arm_table(comparison), self.base, self.rates, studies.difference_plot(comparison))
        return Section("Arms", arms), *cells, Section("How to read it", EXPLAINED, page_only=True)


def ablate(
    recipe: Recipe,
    vary: Vary = (),
    *,
    grid: bool = False,
    seeds: int = 3,
    fixed_rate: bool = False,
    rates: Sequence[float] | None = None,
    out: StrPath | None = None,
    plan: bool = False,
    command: str = "vitkit.ablate(...)",
    **machine: Unpack[MachineOptions],
) -> Ablation | studies.StudyPlan:
    """Change a recipe's options one at a time, and see what each is worth: vitkit ablate digits --vary
    position=learned,none.

    All options of vitkit train (vitkit train --help-all) may follow, such as --data, --start or --steps:
    they change the base, and all arms with it. Stopped anywhere, the same command goes on.

    Args:
        recipe: the base of all comparisons: a recipe, as vitkit recipes lists them; from Python also a Run.
        vary: an option of training and its values, as in position=learned,none,learned_2d; given once for
            each option. A + joins further settings to a value: optimizer=adamw,sgd+weight_decay=0. From
            Python a mapping of names to lists of values.
        grid: train every combination of the values; left out, one option at a time is changed against the
            base.
        seeds: runs of each arm, with seeds that follow one another from --seed and are the same in all arms.
            One seed says something about these weights only, and nothing about other trainings.
        fixed_rate: train every arm at its own learning rate, that of the recipe unless an arm sets another.
            Left out, each arm tries several on held-out images first: the rates of the paper's recipe of
            fine-tuning, else 1/3, 1 and 3 times its own.
        rates: learning rates that each arm tries instead, with commas between.
        out: folder for the runs and the result; left out, runs/DATA-MODEL-ablation. The same command again
            continues there.
        plan: list what is trained and the time it takes here, and train nothing.
        command: continues the study; its record has it.
        machine: what trains, and who hears of it: `device`, `threads`, `quiet` and `listener`.

    Returns:
        The comparison of each arm with the base, and the folder; `report.html` in it has the same. With
        `plan` the runs and their time.

    Raises:
        VitkitError: an option cannot be varied or has no such value, an arm cannot be trained, or `out` holds
            something else.
        InterruptedTraining: a signal stopped it; the same call continues.

    Unstable: its parameters and what it returns may change in any release.
    """
    options = StudyOptions(command=command, **machine)
    varied, arms = make_arms(recipe, vary, grid, seeds, fixed_rate, rates)
    base = arms[0].run
    opened = Opened(base, list_images(base))
    described = {"vary": {name: list(shown) for name, shown in varied.items()}, "grid": grid}
    study = studies.new_study(KIND, command, described, arms)

    if plan:
        return _plan(study.arms, options, opened)
    numbered = partial(numbered_folders, opened.images.name, base.model, ENDING)
    given = None if out is None else Path(out)
    if not next(folders_for(study.owner, given, numbered))[1]:  # it has not begun
        options.listener.note(_plan(study.arms, options, opened).summary())
    with study.claim(given, numbered) as folder:
        completed = studies.complete_arms(study.arms, folder, options)
        with options.listener.progress("comparing the arms"):
            tested = studies.read_scores(folder, study.arms, completed)
            seeds_made = [member.seed for member in completed[0].members]
            comparison = studies.compare_scored(tested, study.arms, completed, seeds_made)
        best = max((comparison.base, *comparison.arms), key=lambda arm: arm.mean or 0.0)
        own = ", ".join(f"{name} {values[0]}" for name, values in varied.items())
        # The page may be given away, so that it has no paths of this machine.
        model = f"{base.model or without_places(base.start.start)} on {without_places(base.data)}"
        origin = f"the recipe {base.recipe}" if base.recipe else "the given run"
        ablation = Ablation(
            folder=folder,
            base=f"The base is {origin} ({model}) with {own}.",
            rates=explain_rates(arms[0]),
            vary=varied,
            comparison=comparison,
            data=opened.images.name,
            best=best.folder if best.scores else "",
        )
        studies.publish(ablation, [arm.folder for arm in study.arms], options)
    return ablation


def _plan(arms: Sequence[studies.Arm], options: StudyOptions, opened: Opened) -> studies.StudyPlan:
    """Refuse arms that cannot be trained or compared, before a folder is made; time the others."""
    splits = arms[0].run.splits
    if arms[0].series.sweeps:  # after the sweep, the images that it holds out are training images
        splits = replace(splits, val_fraction=0.0)
    images = list_images(replace(arms[0].run, splits=splits), opened).splits
    split = "test" if "test" in images else "val"
    if split not in images:
        raise VitkitError(
            "Arms are compared on test images, and there are none: give --splits.test-fraction."
        )
    said = studies.describe_detectable(arms[0].series.runs, len(images[split]), split)
    return studies.plan_arms(arms, options, opened, said)


def make_arms(
    recipe: Recipe, vary: Vary, grid: bool, seeds: int, fixed_rate: bool, rates: Sequence[float] | None
) -> tuple[dict[str, tuple[str, ...]], list[studies.Arm]]:
    """Make the arms of an ablation: the base first, then its variants, each once; the arguments are its own.

    Returns:
        The values of each varied option, the base's first; and the arms.

    Raises:
        VitkitError: there is no such recipe, or its runs cannot be compared; an option cannot be varied, has
            no such value, or no value other than the base's.
    """
    if not vary:
        raise VitkitError(
            "Which option is to be varied? Give an option of training and its values: --vary "
            "position=learned,none."
        )
    if rates is not None and fixed_rate:
        raise VitkitError("fixed_rate tries no rates, and rates names some: give one of the two.")
    base = recipe if isinstance(recipe, Run) else recipes.recipe(recipe)
    require_data(base)
    if find_task(base.task).answering is None:
        raise VitkitError(
            f"{base.task} gives no answers to compare image by image: ablate a run that is fine-tuned from "
            "it."
        )
    if base.training.minutes is not None:
        raise VitkitError(
            "minutes gives each arm as many steps as the clock allows, and all arms need the same number: "
            "give --steps or --epochs."
        )
    varied: dict[str, list[Settings]] = {}
    for name, values in read_vary(vary).items():
        varied[name] = [{}]  # the base's own
        for settings in values:
            for option in settings:
                why = NOT_VARIED.get("data" if option.startswith("splits.") else option)
                if why is not None:
                    raise VitkitError(f"{option} cannot be varied: {why}.")
            # The sweep of each arm would ignore such rates.
            if "learning_rate" in settings and rates is not None:
                raise VitkitError(
                    "rates names the learning rates of every arm, and vary sets one: leave --rates out, or "
                    "vary no learning_rate."
                )
            if list(settings) == ["learning_rate"] and not fixed_rate:
                raise VitkitError(
                    "Each arm tries several learning rates and takes the best: vary learning_rate with "
                    "--fixed-rate."
                )
            run = with_options(base, settings)
            if not any(_is_same(run, with_options(base, other)) for other in varied[name]):
                varied[name].append(settings)
        if len(varied[name]) == 1:
            own = _shown(_value(base, name))
            raise VitkitError(f"{name} has the value {own} in the base already: give others to compare with.")
    arms: list[studies.Arm] = []
    combinations: list[Settings] = [{}, *(each for values in varied.values() for each in values[1:])]
    if grid:
        combinations = list(map(_joined, itertools.product(*varied.values())))
    for settings in combinations:
        run = with_options(base, settings)
        if any(_is_same(run, arm.run) for arm in arms):
            continue
        label = ", ".join(f"{name} {_shown(_value(run, name))}" for name in settings) or "the base"
        # An arm that sets a rate tries rates around it, and not the recipe's.
        is_own = run.optimizer.learning_rate != base.optimizer.learning_rate
        default_rates = recipes.sweep_rates(replace(run, recipe="") if is_own else run, MULTIPLES)
        series = studies.arm_series(seeds, () if fixed_rate else studies.read_rates(rates, default_rates))
        arms.append(studies.Arm(_folder(label, arms), label, run, series))
    return {name: tuple(_value_text(base, name, each) for each in varied[name]) for name in varied}, arms


def read_vary(vary: Vary) -> dict[str, list[Settings]]:
    """Read the varied options, each with its values.

    Raises:
        VitkitError: a text is not "OPTION=VALUE,VALUE".
    """
    if isinstance(vary, Mapping):
        given = [(name, [values] if isinstance(values, str) else values) for name, values in vary.items()]
    else:
        given = []
        for text in vary:
            name, equals, listed = text.partition("=")
            if not (name.strip() and equals and listed.strip()):
                raise VitkitError(
                    f"vary is an option and its values, as in position=learned,none, found {text!r}."
                )
            given.append((name, listed.split(",")))
    read: dict[str, list[Settings]] = {}
    for name, values in given:
        option = name.strip().replace("-", "_")
        for value in values:
            settings = {option: value}
            if isinstance(value, str):
                # "sgd+weight_decay=0" joins a setting to a value. Only a + before a name and an equals sign
                # does: R50+ViT-B/16 is a model.
                settings[option], *joined = re.split(r"\+(?=[A-Za-z_][\w.-]*=)", value.strip())
                others = (text.partition("=") for text in joined)
                settings |= {other.replace("-", "_"): text.strip() for other, _, text in others}
            read.setdefault(option, []).append(settings)
    return read


def _joined(chosen: Sequence[Settings]) -> Settings:
    """Merge the settings of several options.

    Raises:
        VitkitError: two of them set the same option.
    """
    names = [name for settings in chosen for name in settings]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise VitkitError(f"In a grid two values set {twice}: join it to one of them, or leave --grid out.")
    return {name: value for settings in chosen for name, value in settings.items()}


def _is_same(run: Run, other: Run) -> bool:
    """Whether two runs train alike: with the same options and the same model, however it is written.

    A position embedding in the name of the model is the same as in its option, for example.
    """
    if run == other:
        return True
    model, other_model = _model(run), _model(other)
    plain, other_plain = (replace(each, model="", architecture=Architecture()) for each in (run, other))
    return model is not None and model == other_model and plain == other_plain


def _model(run: Run) -> ModelConfig | None:
    """Give the configuration of the model of a run; None where its start decides it, or it is impossible."""
    if run.start.start:
        return None
    try:
        # The number of classes is the same in all arms.
        return run.architecture.build_config(run.model, 2, run.preprocessing)
    except VitkitError:  # `check_arms` raises it with the arm's name
        return None


def _value(run: Run, option: str) -> Any:
    """Give the value of an option; where the option is left out, the value in the model's configuration."""
    value = option_value(run, option)
    return getattr(_model(run), option, None) if value is None else value


def _value_text(base: Run, option: str, settings: Settings) -> str:
    """Write a value of a varied option, with the settings that are joined to it."""
    run = with_options(base, settings)
    joined = [f"{name} {_shown(_value(run, name))}" for name in settings if name != option]
    return ", ".join([_shown(_value(run, option)), *joined])


def _shown(value: Any) -> str:
    """Write a value as it is given: none, true, 0.1, 32x64."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return "x".join(map(_shown, value)) if isinstance(value, tuple) else str(value)


def _folder(label: str, arms: Sequence[studies.Arm]) -> str:
    """Make the name of an arm's folder: safe for any file system, and different from every other arm's."""
    name = re.sub(r"[^A-Za-z0-9._]+", "-", label.removeprefix("the ")).strip("-.")[:LONGEST_NAME]
    # Some file systems do not distinguish upper and lower case.
    taken = {arm.folder.casefold() for arm in arms}
    others = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], others) if free.casefold() not in taken)


def explain_rates(base: studies.Arm) -> str:
    """Describe how the learning rate of each arm is chosen, by the runs of the base."""
    listed = join_names([f"{rate:g}" for rate in base.series.sweep_rates])
    if not listed:
        return (
            "Every arm was trained at its own learning rate, which suits the base and may not suit another."
        )
    if len(base.series.sweep_rates) == 1:
        return f"Every arm was trained at a learning rate of {listed}."
    return (
        f"Every arm tried several learning rates ({listed} for the base) on images held out of the training "
        "images, and was trained with the best."
    )
