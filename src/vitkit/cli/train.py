"""`vitkit train`: read the options of a run, train it, and say what comes next."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import tyro

from vitkit.cli import console, streams
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import HelpPage
from vitkit.cli.listener import TerminalListener
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.cli.options import importing, parse, spell_out, take_option
from vitkit.cli.processes import start_several
from vitkit.cli.verb_options import Option, describe
from vitkit.data.config import FIRST_RULE, Augmentation, Loading, Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.tracking import FewShotTracking, linear_probe
from vitkit.jobs.options import HearingOptions, MachineOptions
from vitkit.jobs.pretrain_options import ThenOptions
from vitkit.jobs.recipes import recipe
from vitkit.listener import Listener, hushed
from vitkit.models.config.card import TaskName
from vitkit.runs.config import (
    WHICH_IMAGES,
    Architecture,
    EvaluatorConfig,
    Run,
    StartConfig,
    new_model_config,
    with_task,
)
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import Place, kind_of
from vitkit.runs.series_options import SeriesOptions
from vitkit.training.config import (
    ClassificationConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainingConfig,
)

if TYPE_CHECKING:
    from vitkit.runs.plan import Request
    from vitkit.runs.series_record import Series


# A run again, with what the option parser has to know: only the splits' options carry a prefix, because
# their names alone would not say what is split; the name of the recipe is set by --recipe. Of the union
# of objectives it takes the options of the default, which is the task's; of the evaluators it knows few-shot
# accuracy alone. It takes comments inside the class for help, so these stand here.
@dataclass(frozen=True)
class RunOptions(Run):
    """Options of training. Those left out are the recipe's."""

    start: Annotated[StartConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=StartConfig)
    architecture: Annotated[Architecture, tyro.conf.OmitArgPrefixes] = field(default_factory=Architecture)
    preprocessing: Annotated[Preprocessing, tyro.conf.OmitArgPrefixes] = field(
        default_factory=lambda: Run().preprocessing
    )
    augmentation: Annotated[Augmentation, tyro.conf.OmitArgPrefixes] = field(default_factory=Augmentation)
    objective: Annotated[ObjectiveConfig, tyro.conf.OmitArgPrefixes, tyro.conf.AvoidSubcommands] = field(
        default_factory=ClassificationConfig
    )
    optimizer: Annotated[OptimizerConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=OptimizerConfig)
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=TrainingConfig)
    loading: Annotated[Loading, tyro.conf.OmitArgPrefixes] = field(default_factory=Loading)
    evaluators: Annotated[Mapping[str, EvaluatorConfig], tyro.conf.Fixed, tyro.conf.Suppress] = field(
        default_factory=dict
    )
    fewshot: FewShotTracking = field(default_factory=FewShotTracking)
    recipe: Annotated[str, tyro.conf.Suppress] = ""

    @classmethod
    def from_run(cls, run: Run) -> "RunOptions":
        """Make options whose defaults are those of a run."""
        # Where no labels are learned, the features are all there is to judge.
        learns_labels = isinstance(run.objective, ClassificationConfig)
        left_out = FewShotTracking() if learns_labels else FewShotTracking(methods=("ridge", "knn"))
        fewshot = run.evaluators.get(FEWSHOT, left_out)
        return cls(fewshot=fewshot, **{one.name: getattr(run, one.name) for one in fields(Run)})

    def run(self) -> Run:
        """Return the run that the options stand for."""
        run = Run(**{one.name: getattr(self, one.name) for one in fields(Run)})
        evaluators = {name: run.evaluators[name] for name in run.evaluators if name not in (FEWSHOT, PROBE)}
        if self.fewshot.data:
            evaluators[FEWSHOT] = self.fewshot
            if not isinstance(run.objective, ClassificationConfig):
                evaluators[PROBE] = linear_probe(self.fewshot.data)
        return replace(run, evaluators=evaluators)


FEWSHOT = "fewshot"
"""The name of the evaluator that --fewshot options ask for."""
PROBE = "probe"
"""The name of the linear probe at the end of a run that learns no labels."""
PREFIXED = ("splits", "fewshot")
"""Parts of a run whose options carry their name."""


@dataclass(frozen=True)
class Command:
    """The options of `vitkit train` and `vitkit finetune`."""

    run: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)
    out: str | None = None
    """run folder to write; left out, runs/DATA-MODEL. The same command again continues there."""
    machine: Annotated[MachineOptions, tyro.conf.arg(name="")] = field(default_factory=MachineOptions)
    processes: int = 1
    """processes that train together on this machine, one for each GPU or some for its processors; the result
    is that of one process but for rounding. On several machines: torchrun ... -m vitkit."""
    from_scratch: bool = False
    """begin again at step 0 where every checkpoint of the run is damaged; they are kept."""
    series: Annotated[SeriesOptions, tyro.conf.arg(name="")] = field(default_factory=SeriesOptions)
    hearing: Annotated[HearingOptions, tyro.conf.arg(name="")] = field(default_factory=HearingOptions)
    dry_run: bool = False
    """show data, splits, start, model, length, time, memory and folder, train nothing and write nothing."""


@dataclass(frozen=True)
class FinetuneCommand(Command):
    """The options of `vitkit finetune`, which may choose its start."""

    yes: bool = False
    """fetch the start that is chosen where none is given, without asking."""


@dataclass(frozen=True)
class PretrainCommand(Command):
    """The options of `vitkit pretrain`, which may compare what follows."""

    then: Annotated[ThenOptions, tyro.conf.arg(name="")] = field(default_factory=ThenOptions)


RECIPE = Option(
    "--recipe", "recipe", "RECIPE", "begin with the options of a recipe: vitkit recipes lists them."
)
RESUME = Option("--resume", "resume", "RUN", "go on with a run folder, or with a series of runs.")
START = Option(
    "START",
    "start",
    "START",
    "the weights to begin from: a run folder, a file or folder of weights, a name of vitkit starts, or an "
    "address (hf:org/name, https://...). Where the images stand alone, a published start is chosen by the "
    "speed of this machine, and you are asked before it is fetched.",
    is_positional=True,
)
IMAGES = Option(
    "PATH",
    "data",
    "PATH",
    "images to learn from: a folder of images in any depth, a .csv or .parquet files. They need no labels.",
    is_positional=True,
)
SHOWN = (
    "--data",
    "--recipe",
    "--model",
    "--image-size",
    "--epochs",
    "--minutes",
    "--batch-size",
    "--learning-rate",
    "--out",
    "--resume",
)
"""The options that most people need."""
PAGES = {
    "train": HelpPage(
        "--data DATA [OPTIONS]",
        SHOWN,
        (
            "vitkit train --recipe digits                    # built in, no download",
            "vitkit train --recipe photos --data my_photos/  # folders of classes",
        ),
        (RECIPE, RESUME),
        description="""Train a Vision Transformer on your images, evaluate it, and write a report.

--start RUN trains a finished run for longer, as a new run. --sweep tries learning rates first, and --runs 3
trains with three seeds.""",
    ),
    "finetune": HelpPage(
        "[START --data] DATA [OPTIONS]",
        ("--yes", "--dry-run", *("--head" if name == "--model" else name for name in SHOWN)),
        (
            "vitkit finetune my_photos/  # from a published start that suits them",
            "vitkit finetune runs/digits-ViT-96x6x3-4 --data my_photos/ --minutes 20",
        ),
        (START, RECIPE, RESUME),
        has_defaults=False,
        description="""Train a model that is there already on your images.

Its head is replaced by a new one. What is left out suits the start and the number of images; --recipe paper
is the paper's fine-tuning. --sweep tries learning rates first, and --runs 3 trains with three seeds.""",
    ),
    "pretrain": HelpPage(
        "PATH [OPTIONS]",
        (
            "--objective",
            "--then",
            "--fewshot.data",
            *(name for name in SHOWN if name not in ("--data", "--recipe", "--learning-rate")),
        ),
        (
            "vitkit pretrain my_photos/ --minutes 60",
            "vitkit pretrain my_photos/ --then labelled/  # does it help?",
        ),
        (
            IMAGES,
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
        description="""Train a Vision Transformer on images without labels.

Labels that are there are left out. What is left out suits the size of the images; --recipe masked-patches is
the paper's. --start begins from weights, and --fewshot.data measures on the way what the features are
worth.""",
    ),
}
"""The help of each verb, and the options that it reads before the parser does."""


@dataclass(frozen=True)
class Asked:
    """The options of a command line, read."""

    run: Run
    given: frozenset[str]
    """The names of those that were not left out."""
    out: str | None
    device: str
    threads: int | None
    from_scratch: bool
    series: SeriesOptions
    then: ThenOptions
    hearing: HearingOptions
    yes: bool = False
    """Whether a start that is chosen may be fetched without asking."""
    dry_run: bool = False
    """Whether only what would be done is shown."""

    def over(self, base: Run) -> "Asked":
        """Give the same options, with those of a run in place of the ones that were left out."""
        options = _overlaid(RunOptions.from_run(base), RunOptions.from_run(self.run), self.given)
        return replace(self, run=options.run())


def _overlaid(base: Any, run: Any, given: frozenset[str], prefix: str = "") -> Any:
    """Put the fields of a part of a run whose options are given over those of another one."""
    changes = {}
    for one in fields(base):
        there, here = getattr(base, one.name), getattr(run, one.name)
        if is_dataclass(there):
            within = f"{one.name}." if one.name in PREFIXED else prefix
            same = type(there) is type(here)  # else it is the objective of another task
            changes[one.name] = _overlaid(there, here, given, within) if same else here
        elif given & {f"--{prefix}{word}{one.name.replace('_', '-')}" for word in ("", "no-")}:
            changes[one.name] = here
    return replace(base, **changes)


def main(arguments: list[str]) -> None:
    """Parse the command line and train: `--recipe`, `--resume` and `--start` choose the other defaults."""
    run_verb(arguments, "train")


def run_verb(arguments: list[str], verb: str) -> None:
    """Train as a command line asks for.

    Args:
        arguments: without the verb.
        verb: "train"; "finetune", which never goes on as the run that it begins from was trained, and chooses
            its start where none is given; or "pretrain", whose images need no labels.
    """
    line, typed = shlex.join(["vitkit", verb, *arguments]), arguments
    arguments = list(arguments)
    if start_several(take_option(arguments, "--processes"), verb, arguments):
        return
    name, resume = take_option(arguments, "--recipe"), take_option(arguments, "--resume")
    if name is not None and resume is not None:
        raise VitkitError("--resume continues a run with its own options: give it without --recipe.")
    if resume is not None and "--out" in _names(arguments):
        raise VitkitError("--resume continues in the run's own folder: leave --out out.")
    _refuse_what_was_meant_otherwise(arguments)
    start = take_option(list(arguments), "--start")
    begun, trained = (None if path is None else kind_of(path) for path in (resume, start))
    series = None if begun is None or begun.kind != "series" else _read_series(begun.path)
    unlabelled = verb == "pretrain"
    longer = verb == "train" and trained is not None and trained.is_run and name is None and resume is None
    if begun is not None:
        default = begun.run() if series is None else series.run
    elif longer and trained is not None:
        default = _trained_for_longer(trained)
    else:
        # Without labels the size of the images chooses the model, once they are looked at.
        default = recipe(name) if name else Run(model="") if verb == "pretrain" else Run()
    asked = parse_line(arguments, default, verb, SeriesOptions() if series is None else series.options)

    if not asked.run.data and resume is None:
        raise VitkitError(WHICH_IMAGES)
    if asked.out is not None:
        require_folder(Path(asked.out))
    _require_what_is_named(asked, resume)
    listener = hushed(TerminalListener(), asked.hearing.quiet)
    if asked.run.data:
        purpose = _purpose(asked.run, resume or asked.out, verb == "finetune" and resume is None)
        listener.show([("run", [purpose])])  # torch takes seconds to import
    with importing():
        from vitkit.jobs.pretrain import fit_batch_and_length
        from vitkit.jobs.preview import preview
        from vitkit.jobs.trackers import log_to
        from vitkit.jobs.train import train
        from vitkit.runs.outlook import describe_images
        from vitkit.runs.plan import Request
        from vitkit.weights.files.download import is_local

    listener = log_to(*asked.hearing.log, listener=listener)
    request = Request(*(place for place in (begun, trained) if place is not None))
    if asked.dry_run:
        _refuse_dry_run(asked, series is not None)
    if unlabelled and resume is None:
        default = _suited_to_images(asked, name or "", request, listener)
        asked = asked.over(default)
        given = {option[2:].replace("-", "_") for option in asked.given}
        count = len(request.images(asked.run).splits["train"])
        asked = replace(asked, run=fit_batch_and_length(asked.run, default, given, count))
    elif verb == "finetune" and not resume and not asked.run.start.start:
        asked = _begin_from_default(asked, name or "", line, request, listener)
        if asked.dry_run and not is_local(asked.run.start.start):
            listener.show([("data", [describe_images(request.images(asked.run))])])
            _print_command([*typed, "--yes"], verb)
            return
        default = suited(asked, name or "", request, listener)
        asked = asked.over(default)
    elif asked.run.start.start and not resume and not longer:
        # What is left out suits the start and the data, which are known only now.
        default = suited(asked, name or "", request, listener)
        asked = asked.over(default)
    if asked.run.training.minutes is not None and not resume:
        asked = _timed(asked, default, request, listener)
    if asked.dry_run:
        preview(
            asked.run,
            resume or asked.out,
            resume=bool(resume),
            device=asked.device,
            threads=asked.threads,
            request=request,
            listener=listener,
        )
        _print_command(typed, verb)
        return
    if asked.then.then:
        _compare_and_tell(asked, line, listener)
        return
    if asked.series.is_series:
        if asked.from_scratch:
            raise VitkitError(
                "--from-scratch is for a single run: give it with --resume and that run folder."
            )

        train_and_tell(
            asked.run,
            asked.series,
            resume,
            asked.out,
            asked.device,
            asked.threads,
            line,
            request,
            listener,
        )
        return
    folder = train(
        asked.run,
        resume or asked.out,
        resume=bool(resume),
        device=asked.device,
        threads=asked.threads,
        from_scratch=asked.from_scratch,
        command=line,
        request=request,
        listener=listener,
    )
    _print_what_comes_next(folder, asked.run)


def _require_what_is_named(asked: Asked, resume: str | None = None) -> None:
    """Refuse images, weights and models that are not there."""
    run = asked.run
    tracked = (one.data for one in run.evaluators.values())
    require_images(asked.series.sweep_data, asked.then.then, *tracked)
    if resume is None:  # a run's own data may be elsewhere by now, and says so itself
        require_images(run.data)
        require_checkpoints(run.start.start)
    if run.model and not run.start.start:
        new_model_config(run, num_classes=1)


def _refuse_dry_run(asked: Asked, is_series: bool) -> None:
    """Refuse to show what is more than one run, and what would have to be fetched.

    Raises:
        VitkitError: it is so.
    """
    from vitkit.weights.files.download import is_local

    start = asked.run.start.start
    if asked.series.is_series or asked.then.then or is_series:
        raise VitkitError(
            "--dry-run shows a single run, found options for several: leave --runs, --sweep, "
            "--cross-validate and --then out. The runs of a series differ from it in seed, rate or fold."
        )
    if kind_of(start).is_fetched and not is_local(start):
        raise VitkitError(
            f"--dry-run fetches nothing, and {start} is not on this machine. vitkit card "
            f"{shlex.quote(start)} fetches and describes it; then give the same command again."
        )


def _print_command(typed: list[str], verb: str) -> None:
    """Print that nothing was done, and the command that does it."""
    again = shlex.join(["vitkit", verb, *(one for one in typed if one != "--dry-run")])
    console.out.print(
        f"\nNothing was trained, fetched or written. To do it:\n         {again}",
        markup=False,
        soft_wrap=True,
    )


def _compare_and_tell(asked: Asked, line: str, listener: Listener) -> None:
    """Pre-train, fine-tune with and without it, and print whether it helped."""
    if asked.series.is_series or asked.from_scratch:
        raise VitkitError(
            "--then chooses the runs by itself: give --draws, without --runs, --sweep, --cross-validate or "
            "--from-scratch."
        )
    with importing():
        from vitkit.jobs.study.comparison import arm_table
        from vitkit.jobs.study.pretraining import WITH, compare_pretraining

    helped = compare_pretraining(
        asked.run,
        asked.then,
        None if asked.out is None else Path(asked.out),
        device=asked.device,
        threads=asked.threads,
        command=line,
        listener=listener,
    )
    console.out.print()
    console.out.print(console.lay_out(arm_table(helped.comparison, compact=True)))
    console.out.print("", *helped.answers(), sep="\n", markup=False, soft_wrap=True)
    console.out.print(
        "",
        f"Next:    open {helped.folder / 'report.html'} in a browser",
        f"         vitkit predict {shlex.quote(str(helped.folder / WITH))} IMAGE_OR_FOLDER",
        sep="\n",
        markup=False,
        soft_wrap=True,
    )


def _trained_for_longer(start: Place) -> Run:
    """Give the run that goes on from a run as a new one: with its own options and its own head."""
    before = start.run()
    # A run without a rule was cut by the first one: the test images stay the same.
    splits = replace(before.splits, rule=before.splits.rule or FIRST_RULE)
    training = replace(before.training, minutes=None, evaluate_test=True)
    return replace(before, splits=splits, training=training, start=StartConfig(start.name, head="keep"))


def _read_series(folder: Path) -> "Series":
    """Read the series of runs in a folder."""
    with importing():
        from vitkit.runs.series_record import read_series

    return read_series(folder)


def parse_line(arguments: list[str], defaults: Run, verb: str, several: SeriesOptions) -> Asked:
    """Read a command line; options that are left out are those of a run."""
    command, default = _command(arguments, defaults, verb, several)
    read = parse(command, arguments, verb, PAGES[verb], default)
    return Asked(
        run=read.run.run(),
        given=_names(spell_out(arguments, tuple)),
        out=read.out,
        device=read.machine.device,
        threads=read.machine.threads,
        from_scratch=read.from_scratch,
        series=read.series,
        then=read.then if isinstance(read, PretrainCommand) else ThenOptions(),
        hearing=read.hearing,
        yes=isinstance(read, FinetuneCommand) and read.yes,
        dry_run=read.dry_run,
    )


def describe_training(verb: str = "train", task: TaskName = "classification") -> tuple[Option, ...]:
    """Describe the options of training by a verb, those of a task among them."""
    return describe(*_command(["--task", task], Run(), verb, SeriesOptions()))


def _command(
    arguments: list[str], defaults: Run, verb: str, several: SeriesOptions
) -> "tuple[type[Command], Command]":
    """Choose the options of a verb, and their defaults: a run's, and those of the task that is learned."""
    name = take_option(list(arguments), "--task")
    # The parser refuses names of no task.
    task = cast("TaskName", name) if name in get_args(TaskName) else defaults.task
    command = {"pretrain": PretrainCommand, "finetune": FinetuneCommand}.get(verb, Command)
    return command, command(run=RunOptions.from_run(with_task(defaults, task)), series=several)


def suited(asked: Asked, recipe_name: str, request: "Request", listener: Listener) -> Run:
    """Choose what is left out of a command line, so that it suits the start and the data which it names."""
    from vitkit.cli.console import download
    from vitkit.jobs.finetune import fit_run
    from vitkit.jobs.finetune_defaults import fit_length

    download(asked.run.start.start)
    with listener.progress("looking at the start"):
        suited = fit_run(replace(asked.run, recipe=recipe_name), request, listener)
    training = asked.over(suited.run).run.training
    if recipe_name or training == suited.run.training:
        return suited.run
    # Another length was given: a warm-up that is left out is a part of that one.
    return fit_length(replace(suited.run, training=training), suited.num_images)


def _begin_from_default(
    asked: Asked, recipe_name: str, line: str, request: "Request", listener: Listener
) -> Asked:
    """Choose a start for a command line without one, say which and why, and ask whether it may be fetched.

    Args:
        asked: the command line.
        recipe_name: "" where there is none.
        line: the command as it was typed.
        request: keeps the list of images.
        listener: hears the progress and what was chosen.

    Raises:
        VitkitError: it is not on this machine, and nobody allows to fetch it.
    """
    with importing():
        import torch

        from vitkit.jobs.advice.default_start import choose_start
        from vitkit.jobs.train import require_data
        from vitkit.runs.machine import find_device, require_threads

    require_data(asked.run)
    require_threads(asked.threads)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)  # the speed depends on them
    chosen = choose_start(
        replace(asked.run, recipe=recipe_name),
        None if asked.out is None else Path(asked.out),
        device=find_device(asked.device),
        complete=lambda suited: asked.over(suited).run,
        request=request,
        listener=listener,
    )
    listener.show(chosen.rows())
    if not (
        chosen.is_here
        or asked.dry_run
        or asked.yes
        or _allows(f"Fetch {chosen.start.name}, {chosen.size}? [y/N] ")
    ):
        named = f"vitkit finetune START --data {shlex.quote(asked.run.data)}"
        raise chosen.refusal(f"{line} --yes", named)
    return replace(asked, run=replace(asked.run, start=replace(asked.run.start, start=chosen.start.name)))


def _allows(question: str) -> bool:
    """Ask the person at the terminal; where there is none, nobody has allowed anything."""
    if not (streams.is_terminal(sys.stdin) and streams.is_terminal(sys.stderr)):
        return False
    console.err.print(question, end="", markup=False, soft_wrap=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def study_base(
    arguments: list[str], recipe_name: str, defaults: Run, study: str, instead: str, listener: Listener
) -> tuple[Run, frozenset[str]]:
    """Make the run that a study changes: a recipe with options of training over it, suited to its start.

    Args:
        arguments: the options of training.
        recipe_name: "" where there is none.
        defaults: the recipe.
        study: what the study is called: "an ablation".
        instead: its own options for what series of runs do: "--seeds".
        listener: hears how far it is.

    Returns:
        The run, and the options that stand on the command line.

    Raises:
        VitkitError: an option belongs to a series of runs or to several processes.
    """
    parsed = parse_line(arguments, defaults, "train", SeriesOptions())
    if (
        parsed.series != SeriesOptions()
        or {"--processes", "--from-scratch", "--log", "--dry-run"} & parsed.given
    ):
        raise VitkitError(
            f"The runs of {study} follow from its own options, one after another in one process: give "
            f"{instead}, without --runs, --sweep, --cross-validate, --processes, --from-scratch, --log or "
            "--dry-run."
        )
    _require_what_is_named(parsed)
    if not parsed.run.start.start:
        return parsed.run, parsed.given
    with importing():
        from vitkit.runs.plan import Request

    # What is left out suits the start and the data, as in vitkit finetune.
    run = parsed.over(suited(parsed, recipe_name, Request(), listener)).run
    return run, parsed.given


def _suited_to_images(asked: Asked, recipe_name: str, request: "Request", listener: Listener) -> Run:
    """Choose what is left out of a command line without labels, so that it suits the images and the start."""
    from vitkit.cli.console import download
    from vitkit.jobs.pretrain import fit_pretraining

    download(asked.run.start.start)
    return fit_pretraining(replace(asked.run, recipe=recipe_name), request, listener)


def _timed(asked: Asked, defaults: Run, request: "Request", listener: Listener) -> Asked:
    """Choose the steps of a command line with --minutes: as many as fit into them."""
    given = [option for option in ("--steps", "--epochs") if option in asked.given]
    if given:
        raise VitkitError(f"--minutes chooses the number of steps: give it without {given[0]}.")
    with importing():
        import torch

        from vitkit.jobs.series.series import recorded_run
        from vitkit.runs.budget import with_steps
        from vitkit.runs.machine import require_threads
        from vitkit.runs.plan import settle_minutes

    require_threads(asked.threads)
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)

    def fit(run: Run, steps: int, num_images: int) -> Run:
        # Warm-up and head-first of the defaults become a part of the new length; what is given stays.
        return asked.over(with_steps(defaults, steps, num_images)).run

    is_series = asked.series.is_series or bool(asked.then.then)
    out = None if asked.out is None else Path(asked.out)
    if asked.then.then:
        if out is None:
            raise VitkitError("--minutes with --then needs --out: the folder keeps how many steps they were.")
        out = out / "pretraining"
    run = settle_minutes(
        asked.run,
        out,
        request,
        device=asked.device,
        ending=asked.series.ending if is_series else "",
        recorded=recorded_run if is_series else None,
        fit=fit,
        again=True,
        listener=listener,
    )
    return replace(asked, run=run)


def _purpose(run: Run, folder: str | None, is_finetuned: bool) -> str:
    """Say what a run is about to do, before anything of it was looked at."""
    height, width = run.preprocessing.image_size
    where = "" if folder is None else f", in {folder}"
    if not run.model:
        return f"a model learns from {run.data} without labels{where}"
    if is_finetuned and not run.start.start:
        return f"a published start, which is chosen now, is fine-tuned on {run.data}{where}"
    if run.start.start:
        learned = "fine-tuned" if isinstance(run.objective, ClassificationConfig) else "pre-trained"
        return f"{run.start.start} is {learned} on {run.data}{where}"
    return f"{run.model} at {height}x{width} is trained on {run.data}{where}"


def _print_what_comes_next(folder: Path, run: Run) -> None:
    """Print commands that use the finished run."""
    from vitkit.tasks import find_task

    quoted = shlex.quote(str(folder))
    uses = [f"         vitkit predict {quoted} IMAGE_OR_FOLDER"]
    if find_task(run.task).answering is None:
        uses = [
            f"         vitkit finetune {quoted} --data FOLDER_OF_YOUR_CLASS_FOLDERS",
            f"         vitkit fewshot {quoted} --data FOLDER_OF_YOUR_CLASS_FOLDERS",
        ]
    lines = [
        f"Next:    open {folder / 'report.html'} in a browser",
        *uses,
        f"         vitkit inspect {quoted}",
    ]
    if run.data == "digits":
        lines.append("         vitkit train --recipe photos --data FOLDER_OF_YOUR_CLASS_FOLDERS")
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)


def _refuse_what_was_meant_otherwise(arguments: list[str]) -> None:
    """Name the right option for images without one, and refuse two recipes or runs to go on with."""
    if arguments and not arguments[0].startswith("-") and "=" not in arguments[0]:
        data = shlex.quote(arguments[0])
        raise WrongCommandLine(f"What to train on is given with --data: vitkit train --data {data}")
    for name in {"--recipe", "--resume"} & _names(arguments):
        raise WrongCommandLine(f"{name} is given twice: once is enough.")


def _names(arguments: list[str]) -> frozenset[str]:
    """Name the options of a command line, as they are written with hyphens."""
    names = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    return frozenset(name.replace("_", "-") for name in names)


def train_and_tell(
    run: Run,
    options: SeriesOptions,
    resume: str | None,
    out: str | None,
    device: str,
    threads: int | None,
    command: str,
    request: "Request",
    listener: Listener,
) -> None:
    """Train what a command line asks for; the arguments are those of `vitkit.train_series`."""
    with importing():
        from vitkit.jobs.series.series import train_series
        from vitkit.runs.series_record import read_series

    folder = train_series(
        run,
        resume or out,
        options,
        resume=resume is not None,
        device=device,
        threads=threads,
        command=command,
        request=request,
        listener=listener,
    )
    _print(folder, read_series(folder))


def _print(folder: Path, series: "Series") -> None:
    """Print the tables of a series, its conclusions, and commands that use what it made."""
    from vitkit.jobs.series.report import conclusions, member_table, rate_table

    console.out.print()
    if series.rates:
        console.out.print(console.lay_out(rate_table(series)))
    console.out.print(*series.reasons, sep="\n", markup=False, soft_wrap=True)
    console.out.print(console.lay_out(member_table(series)))
    console.out.print(*conclusions(series), sep="\n", markup=False, soft_wrap=True)
    first = next(one for one in series.members if one.finished)
    of_series = series.options.cross_validate is None
    predicted = shlex.quote(str(folder if of_series else folder / first.folder))
    which = f"   (the model of {first.folder})" if of_series else ""
    lines = [
        f"Next:    open {folder / 'report.html'} in a browser",
        f"         vitkit predict {predicted} IMAGE_OR_FOLDER{which}",
        f"         vitkit inspect {shlex.quote(str(folder / first.folder))}",
    ]
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)
