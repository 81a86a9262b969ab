"""`vitkit train`: read the options of a run, train it, and say what comes next."""

import difflib
import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitkit.cli.options import CONSTRUCTORS, importing, square_sizes
from vitkit.data.loader_config import Loading
from vitkit.data.sources_config import FIRST_RULE
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.jobs.recipes import recipe
from vitkit.jobs.run_config import Architecture, Run, is_run, read_run
from vitkit.jobs.start_config import StartConfig
from vitkit.training.objectives_config import ClassificationConfig
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig

if TYPE_CHECKING:
    from vitkit.cli.listener import TerminalListener


# A run again, with what the option parser has to know: only the splits' options carry a prefix, because
# their names alone would not say what is split; the name of the recipe is set by --recipe. The parser takes
# comments inside the class for help, so these stand here.
@dataclass(frozen=True)
class RunOptions(Run):
    """Options of training. Those left out are the recipe's."""

    start: Annotated[StartConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=StartConfig)
    architecture: Annotated[Architecture, tyro.conf.OmitArgPrefixes] = field(default_factory=Architecture)
    preprocessing: Annotated[Preprocessing, tyro.conf.OmitArgPrefixes] = field(
        default_factory=lambda: Run().preprocessing
    )
    augmentation: Annotated[Augmentation, tyro.conf.OmitArgPrefixes] = field(default_factory=Augmentation)
    objective: Annotated[ClassificationConfig, tyro.conf.OmitArgPrefixes] = field(
        default_factory=ClassificationConfig
    )
    optimizer: Annotated[OptimizerConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=OptimizerConfig)
    training: Annotated[TrainingConfig, tyro.conf.OmitArgPrefixes] = field(default_factory=TrainingConfig)
    loading: Annotated[Loading, tyro.conf.OmitArgPrefixes] = field(default_factory=Loading)
    recipe: Annotated[str, tyro.conf.Suppress] = ""

    @classmethod
    def from_run(cls, run: Run) -> "RunOptions":
        """Make options whose defaults are those of a run."""
        return cls(**{one.name: getattr(run, one.name) for one in fields(Run)})

    def run(self) -> Run:
        """Return the run that the options stand for."""
        return Run(**{one.name: getattr(self, one.name) for one in fields(Run)})


DESCRIPTIONS = {
    "train": """Train a Vision Transformer on your images, evaluate it, and write a report.

--recipe NAME starts from a recipe (vitkit recipes lists them), --resume RUN continues a run folder, and
--start RUN trains a run for longer, as a new run.""",
    "finetune": """Train a model that is there already on your images: vitkit finetune START --data PATH.

START is a run folder, a file or folder of weights, or an address (hf:org/name, https://...). Its head is
replaced by a new one. What is left out suits the start and the number of images; --recipe paper is the
paper's fine-tuning, --resume RUN continues a run folder.""",
}
"""What each verb does, as its help says."""


@dataclass(frozen=True)
class Asked:
    """What a command line asks for."""

    run: Run
    out: str | None
    device: str
    threads: int | None
    from_scratch: bool


def main(arguments: list[str]) -> None:
    """Parse the command line and train: `--recipe`, `--resume` and `--start` choose the other defaults."""
    run_verb(arguments, "train")


def run_verb(arguments: list[str], verb: str) -> None:
    """Train as a command line asks for.

    Args:
        arguments: without the verb.
        verb: "train"; or "finetune", which never goes on as the run that it begins from was trained.
    """
    line = shlex.join(["vitkit", verb, *arguments])
    name, resume = _take(arguments, "--recipe"), _take(arguments, "--resume")
    if name is not None and resume is not None:
        raise VitkitError("--resume continues a run with its own options: give it without --recipe.")
    if resume is not None and any(a == "--out" or a.startswith("--out=") for a in arguments):
        raise VitkitError("--resume continues in the run's own folder: leave --out out.")
    _refuse_what_was_meant_otherwise(arguments)
    default = read_run(Path(resume)) if resume else recipe(name) if name else Run()
    start = None if resume else _value(arguments, "--start")
    longer = verb == "train" and start is not None and name is None and is_run(Path(start))
    if longer and start is not None:
        # Trained for longer, as a new run: its own options and its own head.
        begun = read_run(Path(start))
        # A run without a rule was cut by the first one: the test images stay the same.
        splits = replace(begun.splits, rule=begun.splits.rule or FIRST_RULE)
        default = replace(begun, splits=splits, start=StartConfig(start, head="keep"))
    asked = _parse(arguments, default, verb)

    from vitkit.cli.listener import TerminalListener

    listener = TerminalListener()
    if asked.run.data:
        listener.show([("run", [_purpose(asked.run, resume or asked.out)])])  # torch takes seconds to import
    with importing():
        from vitkit.jobs.train import train
    if asked.run.start.start and not resume and not longer:
        # What is left out suits the start and the data, which are known only now.
        asked = _parse_suited(arguments, asked.run, name or "", verb, listener)
    folder = train(
        asked.run,
        resume or asked.out,
        resume=bool(resume),
        device=asked.device,
        threads=asked.threads,
        from_scratch=asked.from_scratch,
        command=line,
        listener=listener,
    )
    _print_what_comes_next(folder, asked.run)


def _parse(arguments: list[str], defaults: Run, verb: str) -> Asked:
    """Read a command line; options that are left out are those of a run."""
    default = RunOptions.from_run(defaults)

    def command(
        run: Annotated[RunOptions, tyro.conf.arg(name="")] = default,
        out: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        from_scratch: bool = False,
    ) -> Asked:
        """Give what was asked for.

        Args:
            run: the options.
            out: run folder to write; left out, runs/DATA-MODEL. The same command again continues there.
            device: where to compute: auto (a GPU if there is one), cpu, cuda or cuda:1.
            threads: CPU threads; left out, as many as PyTorch chooses.
            from_scratch: begin again at step 0 where every checkpoint of the run is damaged; they are kept.
        """
        return Asked(run.run(), out, device, threads, from_scratch)

    return tyro.cli(
        command,
        args=square_sizes(arguments),
        prog=f"vitkit {verb}",
        description=DESCRIPTIONS[verb],
        registry=CONSTRUCTORS,
        config=(tyro.conf.HelptextFromCommentsOff,),
    )


def _parse_suited(
    arguments: list[str], asked: Run, recipe_name: str, verb: str, listener: "TerminalListener"
) -> Asked:
    """Read a command line once more, with defaults that suit the start and the data which it names."""
    from vitkit.cli.download import download
    from vitkit.jobs.finetune import fit_length, suit_run

    download(asked.start.start)
    with listener.progress("looking at the start"):
        suited = suit_run(replace(asked, recipe=recipe_name))
    found = _parse(arguments, suited.run, verb)
    if recipe_name or found.run.training == suited.run.training:
        return found
    # Another length was given: a warm-up that is left out is a part of that one.
    longer = fit_length(replace(suited.run, training=found.run.training), suited.num_images)
    return _parse(arguments, longer, verb)


def _purpose(run: Run, folder: str | None) -> str:
    """Say what a run is about to do, before anything of it was looked at."""
    height, width = run.preprocessing.image_size
    where = "" if folder is None else f", in {folder}"
    if run.start.start:
        return f"{run.start.start} is fine-tuned on {run.data}{where}"
    return f"{run.model} at {height}x{width} is trained on {run.data}{where}"


def _print_what_comes_next(folder: Path, run: Run) -> None:
    """Print commands that use the finished run."""
    from vitkit.cli import console

    quoted = shlex.quote(str(folder))
    lines = [
        f"Next:    open {folder / 'report.html'} in a browser",
        f"         vitkit predict {quoted} IMAGE_OR_FOLDER",
        f"         vitkit inspect {quoted}",
    ]
    if run.data == "digits":
        lines.append("         vitkit train --recipe photos --data FOLDER_OF_YOUR_CLASS_FOLDERS")
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)


def _refuse_what_was_meant_otherwise(arguments: list[str]) -> None:
    """Name the right option for images without one, and for misspellings of options that are not in the
    parser's list."""
    if arguments and not arguments[0].startswith("-"):
        data = shlex.quote(arguments[0])
        raise VitkitError(f"What to train on is given with --data: vitkit train --data {data}")
    for argument in arguments:
        name = argument.partition("=")[0]
        near = difflib.get_close_matches(name, ["--recipe", "--resume"], n=1, cutoff=0.8)
        if near and name == near[0]:
            raise VitkitError(f"{name} is given twice: once is enough.")
        if near:
            raise VitkitError(f"No option is named {name}. Did you mean {near[0]}?")


def _value(arguments: list[str], option: str) -> str | None:
    """Give the value of an option, which stays among the arguments."""
    return _take(list(arguments), option)


def _take(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from the arguments; returns the value."""
    for i, argument in enumerate(arguments):
        if argument == option:
            if i + 1 == len(arguments):
                raise VitkitError(f"{option} needs a value.")
            value = arguments[i + 1]
            del arguments[i : i + 2]
            return value
        if argument.startswith(option + "="):
            del arguments[i]
            return argument.split("=", 1)[1]
    return None
