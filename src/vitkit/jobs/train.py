"""The job of training: from images to a trained, evaluated, explained model."""

import os
import shlex
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.data.sources import ImageData
from vitkit.errors import VitkitError
from vitkit.jobs.building import Parts, build_parts, build_trainer, model_config_of, read_images
from vitkit.jobs.ending import evaluate_finished, is_complete, take_final_weights
from vitkit.jobs.first_screen import Prospect, Setting, estimate, first_screen, measure_step
from vitkit.jobs.fitting import Standing, fit
from vitkit.jobs.listener import SILENT, Listener
from vitkit.jobs.machine import deterministic, find_device
from vitkit.jobs.memory import require_memory
from vitkit.jobs.report import write_report
from vitkit.jobs.run_config import Run, changed_options, read_config, write_config
from vitkit.jobs.run_folder import locked, place
from vitkit.jobs.start import settle_start, start_place, take_start
from vitkit.jobs.starting_point import name_what_was_set_aside, starting_point
from vitkit.models.build import build_empty, build_model
from vitkit.models.zoo import ModelConfig
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.tasks import find_task
from vitkit.training.layer_rates import rate_scales
from vitkit.weights import save_model

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
    listener: Listener = SILENT,
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
        listener: hears how it goes; left out, nothing is printed.

    Returns:
        The run folder, with `model.safetensors`, `model.json` and `report.html`.

    Raises:
        VitkitError: the data, the configuration, the machine or the disk does not allow it.
        InterruptedTraining: SIGINT (Ctrl-C), SIGTERM, SIGHUP or SIGUSR1 arrived, unless ignored before: the
            step at hand was finished and a checkpoint of it is committed. A second Ctrl-C does not wait
            for the end of the step. Only the main thread answers signals.
    """
    _refuse_options(run, threads)
    if threads is not None:
        torch.set_num_threads(threads)
    run = replace(run, data=place(run.data), start=replace(run.start, start=start_place(run.start.start)))
    with listener.progress("listing images"):
        data = find_task(run.task).open_data(run.data, run.splits, run.preprocessing.decode)
    found_device = find_device(device)
    folder = Path(out) if out is not None else None
    run, start = settle_start(run, data.class_names, folder)
    _refuse_run(run, data, model_config_of(run, len(data.class_names), start), found_device)
    if folder is None:  # none is made before this
        folder = _free_folder(run, data)
    _check_folder(folder, run, resume)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), deterministic(found_device):
        if not (folder / "config.json").exists():
            write_config(folder, run, command)
        parts = build_parts(run, data, folder, listener, start)
        standing = Standing(_command_to_continue(folder, threads, device))
        with stop_signals() as stop:
            try:
                _complete(parts, found_device, from_scratch, standing, stop, listener)
            except StopRequest as request:
                raise standing.interrupted(request) from None
    return folder


def _complete(
    parts: Parts,
    device: torch.device,
    from_scratch: bool,
    standing: Standing,
    stop: StopSignals,
    listener: Listener,
) -> None:
    """Bring a run to its end, wherever it stands.

    Raises:
        StopRequest: a signal asked to stop; `standing` says where that was.
    """
    run, folder, model = parts.run, parts.folder, parts.model
    with listener.progress("looking for checkpoints"):
        checkpoint = starting_point(folder, run, from_scratch, listener)
    if is_complete(parts, checkpoint):
        listener.show([("", [f"This run has finished: {folder}"])])
        name_what_was_set_aside(folder, listener)
        return
    # The start-up rule: the last checkpoint of the run's own folder, which is also what --resume names; else
    # the weights of its start; else new ones, which the model has already.
    if checkpoint is None and parts.start is not None:
        with listener.progress("reading the start"):
            begun = take_start(run, parts.data.class_names, folder, parts.start, model)
        parts = replace(parts, start=begun)
    setting = Setting(folder, str(device), torch.get_num_threads())
    listener.show(first_screen(run, parts.data, model, setting, parts.start))
    parts = read_images(parts, listener)
    trainer = build_trainer(parts, device)
    differences = []
    if checkpoint is not None:
        with listener.progress("reading the checkpoint"):
            differences = trainer.resume(checkpoint)
        standing.point = f"at step {trainer.state.progress.step}, which was committed before"
    with listener.progress("measuring the speed"):
        labels = parts.data.splits["train"].labels
        step_seconds = measure_step(model, trainer, run.training.batch_size, labels)
    name = None if checkpoint is None else checkpoint.name
    prospect = Prospect(step_seconds, trainer.state.progress.step, name)
    listener.show(estimate(run, parts.data, prospect))
    for sentence in differences:
        listener.warn(sentence)
    fit(trainer, find_task(run.task).progress, parts.rejects, standing, stop, listener)
    standing.point = "after the last step, which is committed, before the report was written"
    weights = take_final_weights(model, trainer, listener)
    save_model(model, folder)
    evaluate_finished(parts, device, listener)
    listener.show([("weights", [f"{weights}: {folder / 'model.safetensors'}"])])
    parts.rejects.write()
    parts.rejects.tell(listener)
    listener.show([("report", [str(write_report(folder, listener=listener))])])
    name_what_was_set_aside(folder, listener)


def require_data(run: Run) -> None:
    """Refuse a run that does not say what its images are."""
    if not run.data:
        raise VitkitError(
            "Which images? Give data (--data): digits (built in), a folder of class folders, a .csv of paths "
            "and labels, or a folder of .parquet files."
        )


def _refuse_options(run: Run, threads: int | None) -> None:
    """Refuse options that are wrong whatever the images are."""
    require_data(run)
    if not run.model and not run.start.start:
        raise VitkitError(
            "This recipe trains a model that is there already: give it with --start, or begin with vitkit "
            "finetune START."
        )
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise VitkitError(f"threads is from 1 to {MOST_THREADS:,}, found {threads}.")
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1").strip() != "1":
        raise VitkitError(
            "Training on several processes is not there yet: start one process, without torchrun (RANK is "
            f"set and WORLD_SIZE is {os.environ.get('WORLD_SIZE')!r})."
        )


def _refuse_run(run: Run, data: ImageData, config: ModelConfig, device: torch.device) -> None:
    """Refuse a run whose model is none or does not fit into memory, or that has no end."""
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    find_task(run.task).learned(run.objective)  # refuses options of the loss that do not fit the task
    if run.optimizer.freezes and not run.start.start:
        raise VitkitError(
            "freeze and freeze_layers keep weights as they are, and new ones know nothing: give a start "
            "(--start), or leave them out."
        )
    require_memory(config, run, device)
    if run.optimizer.differs_by_layer:
        rate_scales(
            build_empty(lambda: build_model(config)), run.optimizer
        )  # refuses layers that are not there
    run.training.total_steps(len(data.splits["train"]))


def _command_to_continue(folder: Path, threads: int | None, device: str) -> str:
    """Write the command that continues the run in a folder on the same machine."""
    command = f"vitkit train --resume {shlex.quote(str(folder))}"
    command += f" --threads {threads}" if threads is not None else ""
    return command + (f" --device {device}" if device != "auto" else "")


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
