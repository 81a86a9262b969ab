"""`vitkit train`: read the options of a run, train it, and name the commands that can follow."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitkit.cli import console, streams
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.console import TerminalListener
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.cli.options import importing
from vitkit.cli.parser import read
from vitkit.cli.processes import start_several
from vitkit.cli.training_options import RECIPE, RESUME, CommandLine, describe_training, make_line, parse_line
from vitkit.cli.verb_options import Option
from vitkit.errors import VitkitError
from vitkit.jobs.options import MachineOptions, as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.listener import Listener, hushed
from vitkit.runs.config import WHICH_IMAGES, Run, StartConfig, full_name, new_model_config, with_task
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Place, kind_of
from vitkit.runs.series_options import SeriesOptions
from vitkit.training.config import ClassificationConfig

if TYPE_CHECKING:
    from vitkit.runs.plan import Opened
    from vitkit.runs.series_record import SeriesRecord

FIRST = (RECIPE, RESUME, Option("--start", "start", "START"))
"""The options that are read before all others, because they choose the defaults."""
WHICH_UNLABELLED = (
    "Which images to learn from? Give a folder or file first: vitkit pretrain DATA. They need no labels."
)


def main(arguments: list[str]) -> None:
    """Parse the command line and train."""
    run_verb(arguments, "train")


def run_verb(arguments: list[str], verb: str) -> None:
    """Train by a command line.

    Three of its options choose the defaults of all others, and are read before the parser: `--recipe`,
    `--resume` and `--start`. What is left out then suits the start and the images, once these are looked at.

    Args:
        arguments: the command line after the verb.
        verb: "train"; "finetune", which has defaults of its own for a finished run too, and chooses a start
            where none is given; or "pretrain", whose images need no labels.
    """
    typed = ["vitkit", verb, *arguments]
    command = shlex.join(typed)
    if start_several(verb, arguments):
        return
    first = read(arguments, FIRST).given
    recipe_name, resume = first.get("recipe", ""), first.get("resume")
    _refuse_mistakes(arguments, recipe_name, resume)
    resumed, start = (None if path is None else kind_of(path) for path in (resume, first.get("start")))
    series = _read_series_record(resumed.path) if resumed is not None and resumed.kind == "series" else None
    is_longer = False
    if resumed is not None:
        default = resumed.run() if series is None else series.run
    elif recipe_name:
        default = recipe(recipe_name)
    elif verb == "train" and start is not None and start.is_run:
        default, is_longer = _trained_for_longer(start), True
    else:
        # Without labels the size of the images chooses the model, once they are looked at.
        default = with_task(Run(model=""), "masked-patches") if verb == "pretrain" else Run()
    line = parse_line(arguments, default, verb, SeriesOptions() if series is None else series.options)
    options, out = line.options, resume or line.options.out

    if not line.run.data and resume is None:
        raise VitkitError(WHICH_UNLABELLED if verb == "pretrain" else WHICH_IMAGES)
    if options.out is not None:
        require_folder(Path(options.out))
    _require_inputs(line, resume)
    listener = hushed(TerminalListener(), options.hearing.quiet)
    if line.run.data:
        purpose = _purpose(line.run, out, verb == "finetune" and resume is None)
        listener.show([("run", [purpose])])  # torch takes seconds to import
    with importing():
        from vitkit.jobs.preview import preview
        from vitkit.jobs.series.series import train_series
        from vitkit.jobs.trackers import log_to
        from vitkit.jobs.train import foresee_run, train
        from vitkit.runs.outlook import describe_images
        from vitkit.runs.plan import list_images, look_at
        from vitkit.weights.files.download import is_local

    listener = log_to(*options.hearing.log, listener=listener)
    is_single = not (options.series.is_series or options.then.then)
    opened: Opened | None = None
    if options.dry_run:
        _refuse_dry_run(line, series is not None)
    if resume is None:
        if verb == "finetune" and not line.run.start.start:
            line = _choose_start(line, recipe_name, command, listener)
            if options.dry_run and not is_local(line.run.start.start):
                listener.show([("data", [describe_images(list_images(line.run))])])
                _print_command([*typed, "--yes"])
                return
        if verb == "pretrain":
            line, default, opened = _suit_pretraining(line, recipe_name, listener)
        elif line.run.start.start and not is_longer:
            default, opened = suited(line, recipe_name, listener, keep=is_single)
            line = line.over(default)
        if line.run.training.minutes is not None:
            opened = opened or look_at(line.run)
            line = _choose_length(line, default, opened, listener)
    circumstances: dict[str, Any] = {
        **as_arguments(MachineOptions, options.machine),
        "resume": resumed is not None,
        "opened": opened,
        "listener": listener,
    }
    if options.dry_run:
        preview(*foresee_run(line.run, out, **circumstances), listener)
        _print_command(typed)
    elif options.then.then:
        _compare(line, command, listener)
    elif options.series.is_series:
        if options.from_scratch:
            raise VitkitError(
                "--from-scratch is for a single run: give it with --resume and that run folder."
            )
        folder = train_series(line.run, out, options.series, command=command, **circumstances)
        _print_series(folder)
    else:
        folder = train(line.run, out, from_scratch=options.from_scratch, command=command, **circumstances)
        _print_run(folder, line.run)


def _refuse_mistakes(arguments: list[str], recipe_name: str, resume: str | None) -> None:
    """Refuse options that contradict one another, and a second recipe or run."""
    names = [argument.partition("=")[0] for argument in arguments]
    if recipe_name and resume is not None:
        raise VitkitError("--resume continues a run with its own options: give it without --recipe.")
    if resume is not None and "--out" in names:
        raise VitkitError("--resume continues in the run's own folder: leave --out out.")
    for name in ("--recipe", "--resume"):
        if names.count(name) > 1:
            raise WrongCommandLine(f"{name} is given twice: once is enough.")


def _require_inputs(line: CommandLine, resume: str | None = None) -> None:
    """Refuse images, weights and models that are not there."""
    run, options = line.run, line.options
    require_images(options.series.sweep_data, options.then.then, run.fewshot.data)
    if resume is None:  # the images of a run may have moved, which training itself reports
        require_images(run.data)
        require_checkpoints(run.start.start)
    if run.model and not run.start.start:
        new_model_config(run, num_classes=1)


def _refuse_dry_run(line: CommandLine, is_series: bool) -> None:
    """Refuse to show several runs, or a run from a start that is not on this machine.

    Args:
        line: the command line.
        is_series: whether it resumes a series.
    """
    from vitkit.weights.files.download import is_local

    start = line.run.start.start
    if line.options.series.is_series or line.options.then.then or is_series:
        raise VitkitError(
            "--dry-run shows a single run, found options for several: leave --runs, --sweep, "
            "--cross-validate and --then out. The runs of a series differ from it in seed, rate or fold."
        )
    if kind_of(start).is_fetched and not is_local(start):
        raise VitkitError(
            f"--dry-run fetches nothing, and {start} is not on this machine. vitkit card "
            f"{shlex.quote(start)} fetches and describes it; then give the same command again."
        )


def _purpose(run: Run, folder: str | None, is_finetuned: bool) -> str:
    """Say what a run is about to do, before its images and its start are looked at."""
    height, width = run.preprocessing.image_size
    where = "" if folder is None else f", in {folder}"
    if not run.model:
        return f"a model learns from {run.data} without labels{where}"
    if is_finetuned and not run.start.start:
        return f"a published start, which is chosen now, is fine-tuned on {run.data}{where}"
    if run.start.start:
        learned = "fine-tuned" if isinstance(run.objective, ClassificationConfig) else "pre-trained"
        return f"{run.start.start} is {learned} on {run.data}{where}"
    return f"{full_name(run, 1)} at {height}x{width} is trained on {run.data}{where}"


def _trained_for_longer(start: Place) -> Run:
    """Return the run that goes on from a finished run as a new one, with the same options and head."""
    before = start.run()
    training = replace(before.training, minutes=None, evaluate_test=True)
    return replace(before, training=training, start=StartConfig(start.name, head="keep"))


def _read_series_record(folder: Path) -> "SeriesRecord":
    """Read the record with which a series of runs began."""
    with importing():
        from vitkit.runs.series_record import read_series_record

    return read_series_record(folder)


def _choose_start(line: CommandLine, recipe_name: str, command: str, listener: Listener) -> CommandLine:
    """Choose a start for a command line without one, say which and why, and ask whether to fetch it.

    Args:
        line: the command line.
        recipe_name: "" where there is none.
        command: the command as it was typed.
        listener: hears the progress and the choice.

    Raises:
        VitkitError: the start is not on this machine, and nobody allows to fetch it.
    """
    with importing():
        from vitkit.jobs.default_start import choose_start
        from vitkit.jobs.train import require_data
        from vitkit.runs.machine import find_device

    options = line.options
    require_data(line.run)
    _set_threads(options.machine.threads)
    chosen = choose_start(
        replace(line.run, recipe=recipe_name),
        None if options.out is None else Path(options.out),
        device=find_device(options.machine.device),
        complete=lambda suited: line.over(suited).run,
        listener=listener,
    )
    listener.show(chosen.rows())
    if not (
        chosen.is_here
        or options.dry_run
        or options.yes
        or _allows(f"Fetch {chosen.start.name}, {chosen.size}? [y/N] ")
    ):
        raise chosen.refusal(f"{command} --yes", f"vitkit finetune START {shlex.quote(line.run.data)}")
    return replace(line, run=replace(line.run, start=replace(line.run.start, start=chosen.start.name)))


def _allows(question: str) -> bool:
    """Whether the person at the terminal says yes; where there is no terminal, nobody does."""
    if not (streams.is_terminal(sys.stdin) and streams.is_terminal(sys.stderr)):
        return False
    console.err.print(question, end="", markup=False, soft_wrap=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def suited(
    line: CommandLine, recipe_name: str, listener: Listener, keep: bool = False
) -> "tuple[Run, Opened]":
    """Return a run whose options suit the start and the images of a command line, and those."""
    with importing():
        from vitkit.jobs.finetune import suit_start
        from vitkit.jobs.finetune_defaults import fit_length

    console.download(line.run.start.start)
    with listener.progress("looking at the start"):
        suited = suit_start(replace(line.run, recipe=recipe_name), listener, keep)
    training = line.over(suited.run).run.training
    if recipe_name or training == suited.run.training:
        return suited.run, suited.opened
    # The warm-up is a part of the length, which is given here.
    return fit_length(replace(suited.run, training=training), suited.opened.num_images), suited.opened


def _suit_pretraining(
    line: CommandLine, recipe_name: str, listener: Listener
) -> "tuple[CommandLine, Run, Opened]":
    """Lay a command line over a run whose options suit its images without labels; return those too."""
    from vitkit.jobs.pretrain import fit_batch_and_length, suit_pretraining
    from vitkit.runs.plan import list_images

    console.download(line.run.start.start)
    suited, opened = suit_pretraining(replace(line.run, recipe=recipe_name), listener)
    run = line.over(suited).run
    given = {path.rpartition(".")[2] for path in line.given}
    run = fit_batch_and_length(run, suited, given, len(list_images(run, opened).splits["train"]))
    return replace(line, run=run), suited, opened


def _choose_length(line: CommandLine, default: Run, opened: "Opened", listener: Listener) -> CommandLine:
    """Choose as many steps as --minutes has time for.

    Args:
        line: the command line.
        default: the run that it was laid over.
        opened: the images and the start.
        listener: hears the progress.
    """
    options = line.options
    for length in ("steps", "epochs"):
        if f"training.{length}" in line.given:
            raise VitkitError(f"--minutes chooses the number of steps: give it without --{length}.")
    with importing():
        from vitkit.runs.budget import with_steps
        from vitkit.runs.plan import choose_length

    _set_threads(options.machine.threads)

    def set_steps(run: Run, steps: int, num_images: int) -> Run:
        # Warm-up and head-first of the defaults become a part of the new length; options that are given stay.
        return line.over(with_steps(default, steps, num_images)).run

    is_series = options.series.is_series or bool(options.then.then)
    out = None if options.out is None else Path(options.out)
    if options.then.then:
        if out is None:
            raise VitkitError("--minutes with --then needs --out: the folder keeps how many steps they were.")
        out = out / "pretraining"
    run = choose_length(
        line.run,
        out,
        opened,
        device=options.machine.device,
        ending=options.series.ending if is_series else "",
        set_steps=set_steps,
        listener=listener,
    )
    return replace(line, run=run)


def _set_threads(threads: int | None) -> None:
    """Set the number of CPU threads before a speed is measured, which depends on it."""
    with importing():
        import torch

        from vitkit.runs.machine import require_threads

    require_threads(threads)
    if threads is not None:
        torch.set_num_threads(threads)


def _compare(line: CommandLine, command: str, listener: Listener) -> None:
    """Pre-train, fine-tune with and without it, and print whether it helped."""
    options = line.options
    if options.series.is_series or options.from_scratch:
        raise VitkitError(
            "--then chooses the runs by itself: give --draws, without --runs, --sweep, --cross-validate or "
            "--from-scratch."
        )
    with importing():
        from vitkit.jobs.study.pretraining import WITH, compare_pretraining
        from vitkit.jobs.study.study import arm_table

    helped = compare_pretraining(
        line.run,
        options.then,
        None if options.out is None else Path(options.out),
        device=options.machine.device,
        threads=options.machine.threads,
        command=command,
        listener=listener,
    )
    table = arm_table(helped.comparison)
    console.print_lines("")
    console.print_table(table.headings, table.rows)
    console.print_lines("", *helped.answers())
    console.print_next(
        f"open {helped.folder / 'report.html'} in a browser",
        f"vitkit predict {shlex.quote(str(helped.folder / WITH))} IMAGE_OR_FOLDER",
    )


def _print_command(typed: list[str]) -> None:
    """Print that a dry run did nothing, and the command that trains."""
    command = shlex.join(argument for argument in typed if argument != "--dry-run")
    console.print_lines("", "Nothing was trained, fetched or written. To do it:", f"         {command}")


def _print_run(folder: Path, run: Run) -> None:
    """Print commands that use a finished run."""
    from vitkit.tasks import find_task

    quoted = shlex.quote(str(folder))
    uses = [f"vitkit predict {quoted} IMAGE_OR_FOLDER"]
    if find_task(run.task).answering is None:
        classes = "--data FOLDER_OF_YOUR_CLASS_FOLDERS"
        uses = [f"vitkit finetune {quoted} {classes}", f"vitkit fewshot {quoted} {classes}"]
    uses.append(f"vitkit inspect {quoted}")
    if run.data == "digits":
        uses.append("vitkit data check FOLDER_OF_YOUR_CLASS_FOLDERS")
    console.print_next(f"open {folder / 'report.html'} in a browser", *uses)


def _print_series(folder: Path) -> None:
    """Print the tables of a series, its conclusions, and commands that use its runs."""
    from vitkit.jobs.series.report import conclusions, member_table, rate_table
    from vitkit.runs.series_record import read_series

    series = read_series(folder)
    console.print_lines("")
    if series.rates:
        rates = rate_table(series)
        console.print_table(rates.headings, rates.rows, text=(0, -1))
    console.print_lines(*series.reasons)
    members = member_table(series)
    console.print_table(members.headings, members.rows, text=(0, -1))
    console.print_lines(*conclusions(series))
    first = next(member for member in series.members if member.finished)
    of_series = series.options.cross_validate is None
    predicted = shlex.quote(str(folder if of_series else folder / first.folder))
    remark = f"   (the model of {first.folder})" if of_series else ""
    console.print_next(
        f"open {folder / 'report.html'} in a browser",
        f"vitkit predict {predicted} IMAGE_OR_FOLDER{remark}",
        f"vitkit inspect {shlex.quote(str(folder / first.folder))}",
    )


def study_base(
    given: Mapping[str, Any], recipe_name: str, default: Run, study: str, instead: str, listener: Listener
) -> Run:
    """Make the run that a study changes: a recipe with options of training over it, suited to its start.

    Args:
        given: the options of training that are given.
        recipe_name: "" where there is none.
        default: the run of the recipe.
        study: the name of the study in a sentence: "an ablation".
        instead: its own options for several runs: "--seeds".
        listener: hears the progress.

    Raises:
        VitkitError: an option belongs to a series of runs or to several processes.
    """
    default = with_task(default, given.get("task", default.task))
    line = make_line(given, default, "train", SeriesOptions(), describe_training(default=default))
    refused = {"processes", "from_scratch", "hearing.log", "dry_run"}
    if line.options.series != SeriesOptions() or refused & {*given}:
        raise VitkitError(
            f"The runs of {study} follow from its own options, one after another in one process: give "
            f"{instead}, without --runs, --sweep, --cross-validate, --processes, --from-scratch, --log or "
            "--dry-run."
        )
    _require_inputs(line)
    if not line.run.start.start:
        return line.run
    # As in vitkit finetune.
    return line.over(suited(line, recipe_name, listener)[0]).run
