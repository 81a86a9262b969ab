"""The job of training: from images to a trained, evaluated, explained model."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.data.sources import ImageData
from vitkit.data.sources_config import NEWEST_RULE
from vitkit.data.transforms_config import refuse_augmentation
from vitkit.errors import VitkitError
from vitkit.jobs.finetune_recipes import departures
from vitkit.jobs.report import write_report
from vitkit.listener import SILENT, Listener
from vitkit.models.build import build_empty, build_model
from vitkit.models.compute_config import Compute
from vitkit.models.zoo import ModelConfig
from vitkit.runs.budget import settle_minutes
from vitkit.runs.build import (
    Parts,
    build_parts,
    build_trainer,
    compute_as_begun,
    model_config_of,
    read_images,
    with_absolute_paths,
)
from vitkit.runs.checkpoints import starting_point, tell_set_aside
from vitkit.runs.config import (
    Run,
    changed_options,
    name_options,
    read_config,
    read_run,
    train_longer,
    write_config,
)
from vitkit.runs.destination import require_folder
from vitkit.runs.finish import evaluate_finished, is_complete, take_final_weights
from vitkit.runs.folder import claim_run_folder, is_new_folder, lock_run_folder
from vitkit.runs.machine import choose_for, deterministic, find_device, keep_freed_memory, require_threads
from vitkit.runs.outlook import Outlook, Surroundings, estimate, first_screen, measure_step, require_memory
from vitkit.runs.pixel_statistics import with_measured_pixels
from vitkit.runs.records import AdviceRecord, StartRecord, compare_with_advice, keep_advice
from vitkit.runs.ridge_head import begin_head, refuse_ridge_head
from vitkit.runs.start import settle_start, take_start
from vitkit.runs.steps import RunPosition, fit
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.tasks import find_task
from vitkit.training.layer_rates import rate_scales
from vitkit.weights import save_model


def train(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    from_scratch: bool = False,
    command: str = "",
    advice: AdviceRecord | None = None,
    listener: Listener = SILENT,
) -> Path:
    """Train a model, evaluate it on images it never saw, and write its report.

    Calling it again with the same run and folder continues from the last committed checkpoint, and does
    nothing if the run has finished.

    Args:
        run: the run configuration; `vitkit.recipe(name)` makes one.
        out: the run folder; left out, one below `runs/` named after data and model.
        resume: whether `out` holds this run already; then only the path of its images may have changed.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1".
        threads: CPU threads; left out, as PyTorch chooses. Bit-identical results need the same number.
        from_scratch: begin again at step 0 where every checkpoint of the run is damaged; they are kept.
        command, advice: to be written down: what made the run, and what is expected of it.
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
    _prepare_process(threads)  # before steps are timed for a budget of minutes
    given = None if out is None else Path(out)
    if given is not None:
        require_folder(given)
    asked = settle_minutes(with_absolute_paths(run), given, device=device, listener=listener)
    found_device = find_device(device)
    asked, run, data, record = _settle(asked, given, listener)
    config = model_config_of(asked, len(data.class_names), record)
    _refuse_run(run, data, config, found_device)  # before a folder is made
    with _hold_folder(given, asked, run, data, resume) as folder, deterministic(found_device):
        if run != _with_rule_of(folder, asked):  # a run that an early version began goes on here
            run, data = _open_data(asked, folder)
        position = RunPosition(command_to_continue(folder, threads, device))
        if not (folder / "config.json").exists():
            write_config(folder, run, command, _choose_compute(run, config, found_device))
        keep_advice(folder, advice)
        # Written before anything random happens: whoever kills the run from here on can continue it.
        parts = build_parts(run, data, folder, listener, record)
        _complete_until_stopped(parts, found_device, from_scratch, position, listener)
    return folder


def _prepare_process(threads: int | None) -> None:
    """Set what belongs to the whole process: threads, and memory that steps free and take again."""
    if threads is not None:
        torch.set_num_threads(threads)
    keep_freed_memory()


def _settle(
    asked: Run, folder: Path | None, listener: Listener
) -> tuple[Run, Run, ImageData, StartRecord | None]:
    """Find out what a run's images and its start decide.

    Returns:
        The run as it was asked for, with its start; the same with the rule by which its splits are cut; its
        images; and its start.
    """
    with listener.progress("listing images"):
        run, data = _open_data(asked, folder)
    asked, record = settle_start(with_measured_pixels(asked, data, listener), data.class_names, folder)
    return asked, replace(run, model=asked.model, start=asked.start), data, record


def _complete_until_stopped(
    parts: Parts, device: torch.device, from_scratch: bool, position: RunPosition, listener: Listener
) -> None:
    """Bring a run to its end, or to the point where a signal stops it.

    Raises:
        InterruptedTraining: a signal asked to stop; it says where the run stands and how to continue.
    """
    with stop_signals() as stop:
        try:
            _complete(parts, device, from_scratch, position, stop, listener)
        except StopRequest as request:
            raise position.interrupted(request) from None


def _complete(
    parts: Parts,
    device: torch.device,
    from_scratch: bool,
    position: RunPosition,
    stop: StopSignals,
    listener: Listener,
) -> None:
    """Bring a run to its end, wherever it stands.

    Raises:
        StopRequest: a signal asked to stop; `position` says where that was.
    """
    run, folder, model = parts.run, parts.folder, parts.model
    with listener.progress("looking for checkpoints"):
        checkpoint = starting_point(folder, run, from_scratch, listener)
    if is_complete(parts, checkpoint):
        # The same command again is harmless: everything is there, so nothing is computed.
        listener.show([("", [f"This run has finished: {folder}"])])
        _tell_the_rest(folder, listener)
        return
    # The start-up rule: the last checkpoint of the run's own folder, which is also what --resume names; else
    # the weights of its start; else new ones, which the model has already.
    if checkpoint is None and parts.start is not None:
        with listener.progress("reading the start"):
            begun = take_start(run, parts.data.class_names, folder, parts.start, model)
        parts = replace(parts, start=begun)
    compute_as_begun(parts, device)
    surroundings = Surroundings(folder, f"{device}, {model.chosen.precision}", torch.get_num_threads())
    from_paper = [] if parts.start is None else departures(run, len(parts.data.splits["train"]))
    listener.show(first_screen(run, parts.data, model, surroundings, parts.start, from_paper))
    # From here on it takes time, so the description of the run is shown before.
    parts = read_images(parts, listener)
    begin_head(parts, checkpoint, device, listener)  # before the trainer copies the weights into an average
    trainer = build_trainer(parts, device)
    differences = []
    if checkpoint is not None:
        with listener.progress("reading the checkpoint"):
            differences = trainer.resume(checkpoint)
        position.point = f"at step {trainer.state.progress.step}, which was committed before"
    # On copies of model and objective: timing a step must not change the run.
    with listener.progress("measuring the speed"):
        targets = parts.data.splits["train"].targets
        step_seconds = measure_step(model, trainer, run.training.batch_size, targets)
    name = None if checkpoint is None else checkpoint.name
    outlook = Outlook(step_seconds, trainer.state.progress.step, name)
    listener.show(estimate(run, parts.data, outlook))
    for sentence in differences:
        listener.warn(sentence)
    fit(trainer, parts.rejects, position, stop, listener)
    position.point = "after the last step, which is committed, before the report was written"
    weights = take_final_weights(model, trainer, listener)
    # The order matters after a kill: `is_complete` looks for the report, which is written last, so that each
    # file before it is either whole or written again from the final checkpoint.
    save_model(model, folder)
    evaluate_finished(parts, device, listener)
    listener.show([("weights", [f"{weights.removeprefix('weights ')}: {folder / 'model.safetensors'}"])])
    parts.rejects.write()
    parts.rejects.tell(listener)
    listener.show([("report", [str(write_report(folder, listener=listener))])])
    _tell_the_rest(folder, listener)


def _tell_the_rest(folder: Path, listener: Listener) -> None:
    """Say of a finished run how it compares with what was expected of it, and what of it was damaged."""
    expected = compare_with_advice(folder)
    if expected:
        listener.show([("advice", [expected])])
    tell_set_aside(folder, listener)


def _open_data(run: Run, folder: Path | None) -> tuple[Run, ImageData]:
    """List the images of a run, cut by the rule that the run in `folder`, if there is one, was begun with."""
    run = _with_rule_of(folder, run)
    return run, find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)


def _with_rule_of(folder: Path | None, run: Run) -> Run:
    """Fill in the rule of the splits where none is asked for: what is recorded, for a new run the newest."""
    if run.splits.rule is not None:
        return run
    begun = folder is not None and (folder / "config.json").exists()
    rule = read_run(folder).splits.rule if folder is not None and begun else NEWEST_RULE
    return replace(run, splits=replace(run.splits, rule=rule))


def require_data(run: Run) -> None:
    """Refuse a run that does not say what its images are."""
    if not run.data:
        raise VitkitError(
            "Which images? Give data (--data): digits (built in), a folder of class folders, a .csv of paths "
            "and labels, or a folder of .parquet files."
        )


def check_run(run: Run, *, device: str = "auto", threads: int | None = None) -> None:
    """Refuse what `train` would refuse before it makes a folder.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow the run.
    """
    _refuse_options(run, threads)
    asked, data = _open_data(with_absolute_paths(run), None)
    asked, record = settle_start(asked, data.class_names, None)
    _refuse_run(asked, data, model_config_of(asked, len(data.class_names), record), find_device(device))


def _refuse_options(run: Run, threads: int | None) -> None:
    """Refuse options that are wrong whatever the images are."""
    require_data(run)
    if not run.model and not run.start.start:
        raise VitkitError(
            "This recipe trains a model that is there already: give it with --start, or begin with vitkit "
            "finetune START."
        )
    require_threads(threads)
    if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1").strip() != "1":
        raise VitkitError(
            "Training on several processes is not there yet: start one process, without torchrun (RANK is "
            f"set and WORLD_SIZE is {os.environ.get('WORLD_SIZE')!r})."
        )


def _refuse_run(run: Run, data: ImageData, config: ModelConfig, device: torch.device) -> None:
    """Refuse a run whose model does not fit into memory, or that would never end."""
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    learning = find_task(run.task).learning
    unfit = learning.explain_unfit(config)
    if unfit:
        raise VitkitError(f"{run.model} {unfit}.")
    learning.learned(run.objective)  # refuses options of the loss that do not fit the task
    refuse_ridge_head(run)
    for evaluator in run.evaluators.values():
        evaluator.check()
    if run.optimizer.freezes and not run.start.start:
        raise VitkitError(
            "freeze and freeze_layers keep weights as they are, and new ones know nothing: give a start "
            "(--start), or leave them out."
        )
    refuse_augmentation(run.augmentation, config.in_channels)
    require_memory(config, run, device)
    if run.optimizer.differs_by_layer:
        # Called for its error alone: layers that are not there.
        rate_scales(build_empty(lambda: build_model(config)), run.optimizer)
    # Called for its error alone: a number of steps that no run gets through.
    run.training.total_steps(len(data.splits["train"]))


def _choose_compute(run: Run, config: ModelConfig, device: torch.device) -> Compute:
    """Choose how the model of a run that begins computes."""
    precision, exact = run.training.precision, run.training.exact
    return choose_for(config, device, precision, phase="training", exact=exact)


def command_to_continue(folder: Path, threads: int | None, device: str) -> str:
    """Write the command that continues the run in a folder on the same machine."""
    command = f"vitkit train --resume {shlex.quote(str(folder))}"
    command += f" --threads {threads}" if threads is not None else ""
    return command + (f" --device {device}" if device != "auto" else "")


@contextmanager
def _hold_folder(given: Path | None, asked: Run, run: Run, data: ImageData, resume: bool) -> Iterator[Path]:
    """Lock the folder of a run: the given one, else one below `runs/`.

    Args:
        given: where the run is to be kept, or None.
        asked: the run as it was asked for.
        run: the same with the rule by which its splits are cut.
        data: its images.
        resume: whether `given` holds the run already.

    Raises:
        VitkitError: another process holds the folder, or something else is in it.
    """
    if given is None:
        with claim_run_folder(asked, data.name, lambda folder: _holds(folder, asked)) as folder:
            yield folder
        return
    _check_folder(given, run, resume)  # before anything is made
    with lock_run_folder(given) as folder:
        _check_folder(folder, run, resume)  # another process may have begun a run there since
        yield folder


def _holds(folder: Path, run: Run) -> bool:
    """Whether a folder holds a run with these options."""
    return (folder / "config.json").exists() and not run_difference(folder, run)


def _check_folder(folder: Path, run: Run, resume: bool) -> None:
    """Refuse a folder that holds another run, or something else."""
    if (folder / "config.json").exists():
        changes = run_difference(folder, run, moved=resume)
        if changes and resume:
            raise VitkitError(
                "A resumed run keeps its options, but these differ:\n  "
                + "\n  ".join(name_options(changes))
                + "\nLeave them out, or start a new run with another --out."
                + train_longer(changes, folder)
            )
        if changes:
            raise VitkitError(
                f"{folder} holds another run:\n  "
                + "\n  ".join(name_options(changes))
                + "\nGive another --out, or continue that run with vitkit train --resume "
                + f"{shlex.quote(str(folder))}."
                + train_longer(changes, folder)
            )
    elif not is_new_folder(folder):
        raise VitkitError(f"{folder} is there already and is no run folder. Give another --out.")


def run_difference(folder: Path, run: Run, moved: bool = False) -> list[str]:
    """List the options in which `run` differs from the run stored in `folder`.

    Options that may change on resume are ignored: see `changed_options`.
    """
    return changed_options(read_config(folder)["run"], str(folder / "config.json"), run, moved)
