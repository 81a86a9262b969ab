"""`vitkit train`: from images to a trained, evaluated, explained model."""

import difflib
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from vitkit.cli.options import square_sizes
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError
from vitkit.jobs.machine import deterministic, find_device
from vitkit.jobs.memory import require_memory
from vitkit.jobs.recipes import recipe
from vitkit.jobs.run_config import Run, changed_options, read_config, read_run, write_config
from vitkit.jobs.run_folder import locked, place
from vitkit.jobs.training_run import TrainingRun

MOST_THREADS = 4096
"""Several times the processors of the largest machines."""


def train(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    from_scratch: bool = False,
    command: str = "",
) -> Path:
    """Train a model, evaluate it on images it never saw, and write its report.

    Calling it again with the same run and folder continues from the last committed checkpoint, and does
    nothing if the run has finished.

    Args:
        run: what to train on what; `vitkit.recipe(name)` makes one.
        out: the run folder; left out, one below `runs/` named after data and model.
        resume: `out` holds this run already; only the place of its images may have changed.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".
        threads: of the processor; left out, as PyTorch chooses. Bit-identical results need the same number.
        from_scratch: begin again at step 0 where every checkpoint of the run is damaged; they are kept.
        command: what to write down as the command that made the run.

    Returns:
        The run folder, with `model.safetensors`, `model.json` and `report.html`.

    Raises:
        VitkitError: the data, the configuration, the machine or the disk does not allow it.
        InterruptedTraining: SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1 arrived, unless ignored before: the
            step at hand was finished and a checkpoint of it is committed. A second Ctrl-C does not wait
            for the end of the step. Only the main thread answers signals.
    """
    if not run.data:
        raise VitkitError(
            "Which images? Give data (--data): digits (built in), a folder of class folders, a .csv of paths "
            "and labels, or a folder of .parquet files."
        )
    if threads is not None:
        if not 1 <= threads <= MOST_THREADS:
            raise VitkitError(f"threads is from 1 to {MOST_THREADS:,}, found {threads}.")
        torch.set_num_threads(threads)
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1").strip() != "1":
        raise VitkitError(
            "Training on several processes is not there yet: start one process, without torchrun (RANK is "
            f"set and WORLD_SIZE is {os.environ.get('WORLD_SIZE')!r})."
        )
    run = replace(run, data=place(run.data))
    data = open_data(run.data, run.splits, run.preprocessing.decode)
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    # Refused before a folder is made: what is no model, does not fit into memory, or has no end.
    config = run.architecture.of(run.model, len(data.class_names), run.preprocessing)
    chosen = find_device(device)
    require_memory(config, run, chosen)
    run.training.total_steps(len(data.splits["train"]))
    folder = Path(out) if out is not None else _free_folder(run, data)
    _check_folder(folder, run, resume)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), deterministic(chosen):
        if not (folder / "config.json").exists():
            write_config(folder, run, command)
        again = f"vitkit train --resume {shlex.quote(str(folder))}"
        again += f" --threads {threads}" if threads is not None else ""
        again += f" --device {device}" if device != "auto" else ""
        return TrainingRun(run, data, folder, chosen, again, from_scratch).complete()


def _free_folder(run: Run, data: ImageData) -> Path:
    """The folder below `runs/` that holds this run already, else the first free one of its name."""
    base, number = Path("runs") / f"{data.name}-{run.model.replace('/', '-')}", 1
    while True:
        folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
        if not (folder / "config.json").exists() or not run_difference(folder, run):
            return folder
        number += 1


def _check_folder(folder: Path, run: Run, resume: bool) -> None:
    """Refuse a folder that holds another run, or something else."""
    if (folder / "config.json").exists():
        changes = run_difference(folder, run, moved=resume)
        if changes and resume:
            raise VitkitError(
                "A resumed run keeps its options, but these differ:\n  " + "\n  ".join(changes) + "\n"
                "Leave them out, or start a new run with another --out."
            )
        if changes:
            raise VitkitError(
                f"{folder} holds another run:\n  " + "\n  ".join(changes) + "\nGive another --out, or "
                f"continue that run with vitkit train --resume {shlex.quote(str(folder))}"
            )
    elif folder.exists() and (not folder.is_dir() or any(p.name[0] != "." for p in folder.iterdir())):
        raise VitkitError(f"{folder} is there already and is no run folder. Give another --out.")


def run_difference(folder: Path, run: Run, moved: bool = False) -> list[str]:
    """The options in which a run differs from a folder's, but for those that may: see `changed_options`."""
    return changed_options(read_config(folder)["run"], str(folder / "config.json"), run, moved)


def main(arguments: list[str]) -> None:
    """The command: `--recipe` or `--resume` choose the defaults that all other options change."""
    line = shlex.join(["vitkit", "train", *arguments])
    name, resume = _take(arguments, "--recipe"), _take(arguments, "--resume")
    if name is not None and resume is not None:
        raise VitkitError("--resume continues a run with its own options: give it without --recipe.")
    if resume is not None and any(a == "--out" or a.startswith("--out=") for a in arguments):
        raise VitkitError("--resume continues in the run's own folder: leave --out out.")
    _refuse_what_was_meant_otherwise(arguments)
    default = read_run(Path(resume)) if resume else recipe(name) if name else Run()

    def command(
        run: Annotated[Run, tyro.conf.arg(name="")] = default,
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
        train(
            run,
            resume or out,
            resume=bool(resume),
            device=device,
            threads=threads,
            from_scratch=from_scratch,
            command=line,
        )

    tyro.cli(command, args=square_sizes(arguments), prog="vitkit train")


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
