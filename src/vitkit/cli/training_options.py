"""The options of training on a command line, and the run that they are read into."""

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, cast, get_args

import tyro

from vitkit.cli.help_pages import HelpPage
from vitkit.cli.options import option_names, parse, spell_out, take_option
from vitkit.cli.verb_options import Option, describe
from vitkit.data.config import Augmentation, Loading, Preprocessing
from vitkit.jobs.options import HearingOptions, MachineOptions, as_arguments
from vitkit.jobs.pretrain_options import ThenOptions
from vitkit.models.config.card import TaskName
from vitkit.runs.config import PREFIXED, Architecture, Run, StartConfig, with_task
from vitkit.runs.series_options import SeriesOptions
from vitkit.training.config import (
    ClassificationConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainingConfig,
)


# A run with marks for the option parser, which no run imports. The union of objectives has
# the options of its default, which is the task's. The recipe is set by --recipe.
@dataclass(frozen=True)
class RunOptions(Run):
    """Options of training; by default the recipe's."""

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
    recipe: Annotated[str, tyro.conf.Suppress] = ""

    @classmethod
    def from_run(cls, run: Run) -> "RunOptions":
        """Make options that have the values of a run as their defaults."""
        return cls(**as_arguments(Run, run))

    def run(self) -> Run:
        """Return the run that the options stand for."""
        return Run(**as_arguments(Run, self))


@dataclass(frozen=True)
class Command:
    """The options of `vitkit train`."""

    run: Annotated[RunOptions, tyro.conf.arg(name="")] = field(default_factory=RunOptions)
    out: str | None = None
    """run folder to write; left out, runs/DATA-MODEL. The same command again continues there."""
    machine: Annotated[MachineOptions, tyro.conf.arg(name="")] = field(default_factory=MachineOptions)
    processes: int = 1
    """processes that train together on this machine, one for each GPU or some for its processors; the result
    is the same but for rounding. On several machines: torchrun ... -m vitkit."""
    from_scratch: bool = False
    """begin again at step 0 where every checkpoint of the run is damaged; they are kept."""
    series: Annotated[SeriesOptions, tyro.conf.arg(name="")] = field(default_factory=SeriesOptions)
    hearing: Annotated[HearingOptions, tyro.conf.arg(name="")] = field(default_factory=HearingOptions)
    dry_run: bool = False
    """show data, splits, start, model, length, time, memory and folder, train nothing and write nothing."""
    # The two verbs below make options of these.
    yes: Annotated[bool, tyro.conf.Fixed, tyro.conf.Suppress] = False
    then: Annotated[ThenOptions, tyro.conf.Fixed, tyro.conf.Suppress] = field(default_factory=ThenOptions)


@dataclass(frozen=True)
class FinetuneCommand(Command):
    """The options of `vitkit finetune`, which may choose its start."""

    yes: bool = False
    """fetch the start that is chosen where none is given, without asking."""


@dataclass(frozen=True)
class PretrainCommand(Command):
    """The options of `vitkit pretrain`, which may fine-tune with and without the result."""

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
TRAINING_PAGES = {
    "train": HelpPage(
        "--data DATA [OPTIONS]",
        "--data --recipe --model --image-size --epochs --minutes --batch-size --learning-rate --out --resume",
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
        "--yes --dry-run --data --recipe --head --image-size --epochs --minutes --batch-size "
        "--learning-rate --out --resume",
        (
            "vitkit finetune my_photos/  # from a published start that suits them",
            "vitkit finetune runs/digits --data my_photos/ --minutes 20",
        ),
        (START, RECIPE, RESUME),
        has_defaults=False,
        description="""Train a model that is there already on your images.

Its head is replaced by a new one. Options left out suit the start and the number of images; --recipe paper
is the paper's fine-tuning. --sweep tries learning rates first, and --runs 3 trains with three seeds.""",
    ),
    "pretrain": HelpPage(
        "PATH [OPTIONS]",
        "--objective --then --fewshot.data --model --image-size --epochs --minutes --batch-size --out "
        "--resume",
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

Labels are ignored. Options left out suit the size of the images; --recipe masked-patches is the paper's.
--start begins from weights, and --fewshot.data measures on the way what the features are worth.""",
    ),
}
"""The help of each verb, and the arguments that it reads before the parser does."""


@dataclass(frozen=True)
class CommandLine:
    """A command line of training, read."""

    run: Run
    given: frozenset[str]
    """The names of the options that are not left out."""
    options: Command
    """The values of all options, the ones of the run among them as they were typed."""

    def over(self, base: Run) -> "CommandLine":
        """Return the same command line with another run under it: the options left out have its values."""
        options = _overlaid(RunOptions.from_run(base), RunOptions.from_run(self.run), self.given)
        return replace(self, run=options.run())


def _overlaid(base: Any, run: Any, given: frozenset[str], prefix: str = "") -> Any:
    """Replace the fields of a run, or of a part of it, whose options are given by another run's."""
    changes = {}
    for name in (part.name for part in fields(base)):
        old, new = getattr(base, name), getattr(run, name)
        if is_dataclass(old):
            within = f"{name}." if name in PREFIXED else prefix
            is_same = type(old) is type(new)  # else it is the objective of another task
            changes[name] = _overlaid(old, new, given, within) if is_same else new
        elif given & {f"--{prefix}{switch}{name.replace('_', '-')}" for switch in ("", "no-")}:
            changes[name] = new
    return replace(base, **changes)


def parse_line(arguments: list[str], defaults: Run, verb: str, series: SeriesOptions) -> CommandLine:
    """Read a command line of training; options that are left out have the values of a run and a series."""
    command, default = _command(arguments, defaults, verb, series)
    options = parse(command, arguments, verb, TRAINING_PAGES[verb], default)
    return CommandLine(options.run.run(), option_names(spell_out(arguments, tuple)), options)


def describe_training(verb: str = "train", task: TaskName = "classification") -> tuple[Option, ...]:
    """Describe the options of training by a verb, the options of a task's objective among them."""
    return describe(*_command(["--task", task], Run(), verb, SeriesOptions()))


def _command(
    arguments: list[str], defaults: Run, verb: str, series: SeriesOptions
) -> tuple[type[Command], Command]:
    """Return the class of a verb's options, and their defaults for the task on the command line."""
    name = take_option(list(arguments), "--task")
    # The parser refuses names of no task.
    task = cast("TaskName", name) if name in get_args(TaskName) else defaults.task
    command = {"pretrain": PretrainCommand, "finetune": FinetuneCommand}.get(verb, Command)
    return command, command(run=RunOptions.from_run(with_task(defaults, task)), series=series)
