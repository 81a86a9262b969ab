"""`vitkit train`, `finetune` and `pretrain`: read the options of a run, train it, and name the commands that
can follow. The studies of `verbs.py` describe their options by the functions of this file too.
"""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, get_args

from vitkit.cli import console, streams
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import importing, in_options, parse_given, require_checkpoints, require_images
from vitkit.cli.verb_options import PROCESSES, Option, describe, read
from vitkit.errors import VitkitError, WrongCommandLine
from vitkit.jobs.options import RESUMED, Job, ThenOptions, split_options
from vitkit.jobs.recipes import recipe
from vitkit.models.config import TaskName
from vitkit.runs.config import WHICH_IMAGES, Run, model_config_of, with_options, with_task
from vitkit.runs.folder import kind_of, sort_out

YES_TEXT = "fetch the start that is chosen where none is given, without asking."
YES = Option("--yes", "download", "", YES_TEXT, False)
RECIPE_TEXT = "begin with the options of a recipe: vitkit recipes lists them."
RECIPE = Option("--recipe", "recipe", "RECIPE", RECIPE_TEXT)
RESUME = Option("--resume", "resume", "RUN", "go on with a run folder, or with a series of runs.")
START_TEXT = (
    "the weights to begin from: a run folder, a file or folder of weights, a name of vitkit starts, or an "
    "address (hf:org/name, https://...). Where the images stand alone, a published start is chosen by the "
    "speed of this machine, and you are asked before it is fetched."
)
START = Option("START", "start.start", "START", START_TEXT, is_positional=True)
DATA_TEXT = "images to learn from: digits (built in), a folder of class folders, a .csv or .parquet files."
DATA = Option("DATA", "data", "DATA", DATA_TEXT, is_positional=True)
IMAGES_TEXT = "images to learn from: a folder of any depth, a .csv or .parquet files. They need no labels."
UNLABELLED = replace(DATA, text=IMAGES_TEXT)
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
OF_A_RUN = {part.name for part in fields(Run)} - {"recipe"}
"""The first parts of the paths of options that are fields of a run."""


def recipe_of(given: Mapping[str, Any], arguments: Sequence[str] = ()) -> Run:
    """Return the run of the recipe that is given, or of none, with the task that a command line names."""
    base = recipe(given["recipe"]) if given.get("recipe") else Run()
    return with_task(base, read(arguments, TASKS).given.get("task", base.task))


def describe_training(verb: str = "", default: Run | None = None) -> tuple[Option, ...]:
    """Describe the options of training.

    Args:
        verb: the verb; left out, the options that all verbs of training share, without a page's first ones.
        default: the run whose values are the defaults of vitkit train, and whose task decides the options of
            the objective; left out, one of the verb's usual task.
    """
    task = next((option.default for option in FIRST.get(verb, ()) if option.path == "task"), Run.task)
    of_run = describe(Run, default or with_task(Run(), task), without=("recipe",))
    of_verb = (YES,) if verb == "finetune" else describe(ThenOptions) if verb == "pretrain" else ()
    others = sorted((*of_run, *describe(Job), PROCESSES, *of_verb), key=lambda option: bool(option.group))
    options = (*FIRST.get(verb, ()), *others)
    # The defaults of fine-tuning and of images without labels follow from the images.
    return options if verb in ("", "train") else tuple(replace(option, default=None) for option in options)


DECIDING = (RECIPE, RESUME, Option("--start", "start", "START"))
"""The options that are read before all others, because they choose the defaults."""
WHICH_UNLABELLED = (
    "Which images to learn from? Give a folder or file first: vitkit pretrain DATA. They need no labels."
)


def main(arguments: list[str], verb: str) -> None:
    """Call `vitkit.train`, `vitkit.finetune` or `vitkit.pretrain` with the options that are given.

    Three of them choose the defaults that the help shows, and are read before the parser: `--recipe`,
    `--resume` and `--start`.

    Args:
        arguments: the command line after the verb.
        verb: train, finetune or pretrain.
    """
    typed = ["vitkit", verb, *arguments]
    first = read(arguments, DECIDING).given
    names = [argument.partition("=")[0] for argument in arguments]
    for name in ("--recipe", "--resume"):
        if names.count(name) > 1:
            raise WrongCommandLine(f"{name} is given twice: once is enough.")
    resume = first.get("resume")
    if resume is not None and {"--recipe", "--out"} & {*names}:
        raise VitkitError(RESUMED)
    begins = kind_of(first["start"]).config if verb == "train" and "start" in first else None
    is_longer = begins is not None and "recipe" not in first  # with a recipe even a run is fine-tuned
    default = _default_run(verb, first, is_longer)
    task = read(arguments, TASKS).given.get("task", default.task)
    table = describe_training(verb, with_task(default, task))
    given = parse_given(None, table, arguments, verb)
    if verb == "finetune" and "start.start" in given and not {"data", "resume"} & {*given}:
        start, data = sort_out(given.pop("start.start"))  # it stands alone
        given |= {"start.start": start} if start else {"data": data}
    if resume is not None and {field.name for field in fields(ThenOptions)} & {*given}:
        raise VitkitError("--then compares runs of its own: give its command again, without --resume.")
    options = {path: given[path] for path in given if path.partition(".")[0] in OF_A_RUN}
    own: dict[str, Any] = {name: value for name, value in given.items() if name not in options}
    own["listener"] = TerminalListener()
    with in_options(table, given):
        run = with_options(default, options)
        split_options(own)  # refuses values before torch is imported
    if not run.data and resume is None:
        raise VitkitError(WHICH_UNLABELLED if verb == "pretrain" else WHICH_IMAGES)
    require_inputs(run, given, resume)
    with importing():
        from vitkit.jobs.finetune import finetune
        from vitkit.jobs.pretrain import pretrain
        from vitkit.jobs.train import train

    own.pop("processes", None)
    own |= {"data": options.pop("data", ""), "command": shlex.join(typed)}
    if start := options.pop("start.start", ""):
        own["start"] = start
        if "dry_run" not in own:
            console.download(start)
    with in_options(table, given):
        if resume is not None or is_longer or (verb == "train" and not start):
            own.pop("download", None)
            folder = train(**own, **options)
        elif verb == "pretrain":
            options.pop("task", None)
            folder = pretrain(**{**own, "objective": run.task}, **options)
        else:
            folder = finetune(**own, ask=_allows, **options)
    if given.get("dry_run"):
        again = [argument for argument in typed if argument != "--dry-run"]
        again += [] if start or verb != "finetune" or "download" in given else ["--yes"]
        said = "Nothing was trained, fetched or written. To do it:"
        console.print_lines("", said, f"         {shlex.join(again)}")
    else:
        _print_trained(folder)


def _default_run(verb: str, first: Mapping[str, Any], is_longer: bool) -> Run:
    """Return the run whose options are the defaults.

    Args:
        verb: train, finetune or pretrain.
        first: recipe, run to resume and start, where they are given.
        is_longer: whether the start is a run, which is trained for longer.
    """
    if first.get("resume") is not None:
        resumed = kind_of(first["resume"])
        if resumed.kind != "series":
            return resumed.run()
        with importing():
            from vitkit.runs.series_record import read_series_record
        return read_series_record(resumed.path).run
    if first.get("recipe"):
        return recipe(first["recipe"])
    if is_longer:
        return kind_of(first["start"]).run()
    # Without labels the size of the images chooses the model, once they are looked at.
    return with_task(Run(model=""), "masked-patches") if verb == "pretrain" else Run()


def require_inputs(run: Run, given: Mapping[str, Any], resume: str | None = None) -> None:
    """Refuse images, weights and models that are not there."""
    require_images(given.get("sweep_data"), given.get("then"), run.fewshot.data)
    if resume is None:  # the images of a run may have moved, which training itself reports
        require_images(run.data)
        require_checkpoints(run.start.start)
    if run.model and not run.start.start:
        model_config_of(run, num_classes=1)


def _allows(question: str) -> bool:
    """Whether the person at the terminal says yes; where there is no terminal, nobody does."""
    if not (streams.is_terminal(sys.stdin) and streams.is_terminal(sys.stderr)):
        return False
    console.err.print(question, end="", markup=False, soft_wrap=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _print_trained(folder: Any) -> None:
    """Print the results of a series or of a comparison; of a run, commands that use it."""
    from vitkit.runs.series_record import read_series
    from vitkit.tasks import find_task

    if folder.study is not None:
        console.print_result(folder.study, {})
        return
    place = kind_of(folder)
    if place.kind == "series":
        console.print_lines("")
        console.print_result(read_series(folder), {})
        return
    run = place.run()
    quoted = shlex.quote(str(folder))
    uses = [f"vitkit predict {quoted} IMAGE_OR_FOLDER"]
    if find_task(run.task).answering is None:
        classes = "--data FOLDER_OF_YOUR_CLASS_FOLDERS"
        uses = [f"vitkit finetune {quoted} {classes}", f"vitkit fewshot {quoted} {classes}"]
    uses.append(f"vitkit inspect {quoted}")
    if run.data == "digits":
        uses.append("vitkit data check FOLDER_OF_YOUR_CLASS_FOLDERS")
    console.print_next(f"open {folder / 'report.html'} in a browser", *uses)


TRAIN, FINETUNE, PRETRAIN = (SimpleNamespace(main=partial(main, verb=verb)) for verb in FIRST)
