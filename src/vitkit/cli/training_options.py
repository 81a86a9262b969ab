"""The options of training on a command line, and the run that they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from vitkit.cli.options import parse_given
from vitkit.cli.parser import read
from vitkit.cli.verb_options import PROCESSES, Option, describe
from vitkit.jobs.options import Job, ThenOptions
from vitkit.jobs.recipes import recipe
from vitkit.models.config.card import TaskName
from vitkit.runs.config import Run, with_task
from vitkit.runs.folder import sort_out
from vitkit.runs.series_options import SeriesOptions

OF_SERIES = tuple(field.name for field in fields(SeriesOptions))
YES = Option(
    "--yes", "download", "", "fetch the start that is chosen where none is given, without asking.", False
)
RECIPE = Option(
    "--recipe", "recipe", "RECIPE", "begin with the options of a recipe: vitkit recipes lists them."
)
RESUME = Option("--resume", "resume", "RUN", "go on with a run folder, or with a series of runs.")
START_TEXT = (
    "the weights to begin from: a run folder, a file or folder of weights, a name of vitkit starts, or an "
    "address (hf:org/name, https://...). Where the images stand alone, a published start is chosen by the "
    "speed of this machine, and you are asked before it is fetched."
)
START = Option("START", "start.start", "START", START_TEXT, is_positional=True)
DATA_TEXT = "images to learn from: digits (built in), a folder of class folders, a .csv or .parquet files."
DATA = Option("DATA", "data", "DATA", DATA_TEXT, is_positional=True)
UNLABELLED = replace(
    DATA, text="images to learn from: a folder of any depth, a .csv or .parquet files. They need no labels."
)
LEARNED = ("masked-patches", "simmim", "mae")
LEARNED_TEXT = "what is learned: masked-patches (the paper), simmim or mae."
OBJECTIVE = Option("--objective", "task", "|".join(LEARNED), LEARNED_TEXT, LEARNED[0], choices=LEARNED)
FIRST = {
    "train": (DATA, RECIPE, RESUME),
    "finetune": (START, DATA, RECIPE, RESUME),
    "pretrain": (UNLABELLED, OBJECTIVE, RECIPE, RESUME),
}
"""The options of each verb of training that stand before those of a run."""
TASKS = tuple(Option(name, "task", "TASK", choices=get_args(TaskName)) for name in ("--task", "--objective"))
"""The options that name the task, which decides what other options there are."""


def parse_training(
    arguments: list[str], verb: str, default: Run
) -> tuple[dict[str, Any], tuple[Option, ...]]:
    """Read a command line of training; return the values that are given by their paths, and all options.

    Args:
        arguments: what follows the verb.
        verb: as it follows vitkit.
        default: the run whose values the help shows as defaults.
    """
    task = read(arguments, TASKS).given.get("task", default.task)
    options = describe_training(verb, with_task(default, task))
    given = parse_given(None, options, arguments, verb)
    if verb == "finetune" and "start.start" in given and not {"data", "resume"} & {*given}:
        start, data = sort_out(given.pop("start.start"))  # it stands alone
        given |= {"start.start": start} if start else {"data": data}
    return given, options


def options_of_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a run."""
    names = {part.name for part in fields(Run)} - {"recipe"}
    return {path: given[path] for path in given if path.split(".")[0] in names}


def recipe_of(given: Mapping[str, Any], arguments: Sequence[str] = ()) -> Run:
    """Return the run of the recipe that is given, or of none, with the task that a command line names."""
    base = recipe(given["recipe"]) if given.get("recipe") else Run()
    return with_task(base, read(arguments, TASKS).given.get("task", base.task))


def describe_study(own: Mapping[str, Any], arguments: Sequence[str]) -> tuple[Option, ...]:
    """Describe the options of training that a study takes, by its recipe, which is among its own."""
    return describe_training(default=recipe_of(own, arguments))


def describe_training(verb: str = "", default: Run | None = None) -> tuple[Option, ...]:
    """Describe the options of training.

    Args:
        verb: the verb; left out, the options that all verbs of training share, without a page's first ones.
        default: the run whose values are the defaults of vitkit train, and whose task decides the options of
            the objective; left out, one of the verb's usual task.
    """
    task = next((option.default for option in FIRST.get(verb, ()) if option.path == "task"), Run.task)
    options = (
        *describe(Run, default or with_task(Run(), task), without=("recipe",)),
        *describe(Job),
        PROCESSES,
        *((YES,) if verb == "finetune" else describe(ThenOptions) if verb == "pretrain" else ()),
    )
    options = (*FIRST.get(verb, ()), *sorted(options, key=lambda option: bool(option.group)))
    # The defaults of fine-tuning and of images without labels follow from the images.
    return options if verb in ("", "train") else tuple(replace(option, default=None) for option in options)
