"""`vitkit train`: read the options of a run, train it, and say what comes next."""

import difflib
import shlex
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated

import tyro

from vitkit.cli.options import importing, square_sizes
from vitkit.data.loader_config import Loading
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.jobs.recipes import recipe
from vitkit.jobs.run_config import Architecture, Run, read_run
from vitkit.jobs.start_config import StartConfig
from vitkit.training.objectives_config import ClassificationConfig
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig


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
    def of(cls, run: Run) -> "RunOptions":
        """Make options whose defaults are those of a run."""
        return cls(**{one.name: getattr(run, one.name) for one in fields(Run)})

    def run(self) -> Run:
        """Return the run that the options stand for."""
        return Run(**{one.name: getattr(self, one.name) for one in fields(Run)})


def main(arguments: list[str]) -> None:
    """The command: `--recipe` or `--resume` choose the defaults that all other options change."""
    line = shlex.join(["vitkit", "train", *arguments])
    name, resume = _take(arguments, "--recipe"), _take(arguments, "--resume")
    if name is not None and resume is not None:
        raise VitkitError("--resume continues a run with its own options: give it without --recipe.")
    if resume is not None and any(a == "--out" or a.startswith("--out=") for a in arguments):
        raise VitkitError("--resume continues in the run's own folder: leave --out out.")
    _refuse_what_was_meant_otherwise(arguments)
    default = RunOptions.of(read_run(Path(resume)) if resume else recipe(name) if name else Run())

    def command(
        run: Annotated[RunOptions, tyro.conf.arg(name="")] = default,
        out: str | None = None,
        device: str = "auto",
        threads: int | None = None,
        from_scratch: bool = False,
    ) -> None:
        """Train a Vision Transformer on your images, evaluate it, and write a report.

        --recipe NAME starts from a recipe (vitkit recipes lists them), --resume RUN continues a run folder.

        Args:
            run: the options.
            out: run folder; left out, runs/DATA-MODEL. The same command again continues there.
            device: auto, cpu, cuda.
            threads: of the processor; left out, as many as there are.
            from_scratch: begin again at step 0 where every checkpoint of the run is damaged; they are kept.
        """
        from vitkit.cli.listener import TerminalListener

        listener, given = TerminalListener(), run.run()
        if given.data:
            listener.show([("run", [_purpose(given, resume or out)])])  # torch takes seconds to import
        with importing():
            from vitkit.jobs.train import train

        folder = train(
            given,
            resume or out,
            resume=bool(resume),
            device=device,
            threads=threads,
            from_scratch=from_scratch,
            command=line,
            listener=listener,
        )
        _print_what_comes_next(folder, given)

    tyro.cli(
        command,
        args=square_sizes(arguments),
        prog="vitkit train",
        config=(tyro.conf.HelptextFromCommentsOff,),
    )


def _purpose(run: Run, folder: str | None) -> str:
    """Say what a run is about to do, before anything of it was looked at."""
    height, width = run.preprocessing.image_size
    where = "" if folder is None else f", in {folder}"
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
