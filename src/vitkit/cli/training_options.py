"""The options of training on a command line, and the run that they stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from vitkit.cli.help_pages import HelpPage
from vitkit.cli.options import parse_given
from vitkit.cli.parser import read
from vitkit.cli.verb_options import PROCESSES, Option, describe
from vitkit.jobs.pretrain_options import ThenOptions
from vitkit.jobs.training_options import Job
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
START = Option(
    "START",
    "start.start",
    "START",
    "the weights to begin from: a run folder, a file or folder of weights, a name of vitkit starts, or an "
    "address (hf:org/name, https://...). Where the images stand alone, a published start is chosen by the "
    "speed of this machine, and you are asked before it is fetched.",
    is_positional=True,
)
DATA = Option(
    "DATA",
    "data",
    "DATA",
    "images to learn from: digits (built in), a folder of class folders, a .csv or .parquet files.",
    is_positional=True,
)
UNLABELLED = replace(
    DATA, text="images to learn from: a folder of any depth, a .csv or .parquet files. They need no labels."
)
TRAINING_PAGES = {
    "train": HelpPage(
        "--recipe --model --image-size --epochs --minutes --batch-size --learning-rate --out --resume",
        (
            "vitkit train --recipe digits                    # built in, no download",
            "vitkit train my_photos/ --recipe photos         # folders of classes",
        ),
        (DATA, RECIPE, RESUME),
        usage="DATA [OPTIONS]",
        description="""Train a Vision Transformer on your images, evaluate it, and write a report.

--start RUN trains a finished run for longer, as a new run. --sweep tries learning rates first, and --runs 3
trains with three seeds.""",
    ),
    "finetune": HelpPage(
        "--yes --dry-run --recipe --head --image-size --epochs --minutes --batch-size "
        "--learning-rate --out --resume",
        (
            "vitkit finetune my_photos/  # from a published start that suits them",
            "vitkit finetune runs/digits my_photos/ --minutes 20",
        ),
        (START, DATA, RECIPE, RESUME),
        has_defaults=False,
        usage="[START] DATA [OPTIONS]",
        description="""Train a model that is there already on your images.

Its head is replaced by a new one. Options left out suit the start and the number of images; --recipe paper
is the paper's fine-tuning. --sweep tries learning rates first, and --runs 3 trains with three seeds.""",
    ),
    "pretrain": HelpPage(
        "--objective --then --fewshot.data --model --image-size --epochs --minutes --batch-size --out "
        "--resume",
        (
            "vitkit pretrain my_photos/ --minutes 60",
            "vitkit pretrain my_photos/ --then labelled/  # does it help?",
        ),
        (
            UNLABELLED,
            Option(
                "--objective",
                "task",
                "masked-patches|simmim|mae",
                "what is learned: masked-patches (the paper), simmim or mae.",
                "masked-patches",
                choices=("masked-patches", "simmim", "mae"),
            ),
            RECIPE,
            RESUME,
        ),
        has_defaults=False,
        usage="DATA [OPTIONS]",
        description="""Train a Vision Transformer on images without labels.

Labels are ignored. Options left out suit the size of the images; --recipe masked-patches is the paper's.
--start begins from weights, and --fewshot.data measures on the way what the features are worth.""",
    ),
}
"""The help of each verb, and the arguments that it reads before the parser does."""


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
    page, options = TRAINING_PAGES[verb], describe_training(verb, with_named_task(default, arguments))
    given = parse_given(page, options, arguments, verb, page)
    if verb == "finetune" and "start.start" in given and not {"data", "resume"} & {*given}:
        start, data = sort_out(given.pop("start.start"))  # it stands alone
        given |= {"start.start": start} if start else {"data": data}
    return given, options


def options_of_run(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are fields of a run."""
    names = {part.name for part in fields(Run)} - {"recipe"}
    return {path: given[path] for path in given if path.split(".")[0] in names}


def with_named_task(run: Run, arguments: Sequence[str]) -> Run:
    """Give a run the task that a command line names."""
    return with_task(run, read(arguments, TASKS).given.get("task", run.task))


def describe_training(verb: str = "", default: Run | None = None) -> tuple[Option, ...]:
    """Describe the options of training.

    Args:
        verb: the verb; left out, the options that all verbs of training share, without a page's first ones.
        default: the run whose values are the defaults, and whose task decides the options of the objective.
    """
    options = (
        *describe(Run, default or Run(), without=("recipe",)),
        *describe(Job),
        PROCESSES,
        *((YES,) if verb == "finetune" else describe(ThenOptions) if verb == "pretrain" else ()),
    )
    before = TRAINING_PAGES[verb].before if verb else ()
    return (*before, *sorted(options, key=lambda option: bool(option.group)))
