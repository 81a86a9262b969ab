"""From images to a trained, evaluated, explained model."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError
from vitkit.jobs.machine import find_device
from vitkit.jobs.memory import require_memory
from vitkit.jobs.run_config import Run, changed_options, read_config, write_config
from vitkit.jobs.run_folder import locked, place
from vitkit.jobs.training_run import TrainingRun


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
        if threads < 1:
            raise VitkitError(f"threads is at least 1, found {threads}.")
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
    with locked(folder):
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
