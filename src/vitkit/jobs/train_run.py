"""Train a run, evaluate its model and write its report."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from vitkit.data.config import refuse_augmentation
from vitkit.durable import moved_error
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.jobs.finetune_recipes import departures
from vitkit.jobs.follow import follow
from vitkit.jobs.report import Trained, write_report
from vitkit.listener import SILENT, Listener
from vitkit.runs.build import Parts, build_parts
from vitkit.runs.checkpoints import starting_point, tell_set_aside
from vitkit.runs.config import (
    Run,
    changed_options,
    name_options,
    read_config,
    require_data,
    train_longer,
)
from vitkit.runs.destination import require_folder
from vitkit.runs.finish import evaluate_finished, is_complete, keep_examples, take_final_weights
from vitkit.runs.folder import Owner, claim, foresee, numbered_folders, require_locked
from vitkit.runs.heartbeat import WorkingListener
from vitkit.runs.machine import compute_as, deterministic, keep_freed_memory, require_threads
from vitkit.runs.outlook import (
    Surroundings,
    choose_sharding,
    first_screen,
    reading_rows,
    require_memory,
)
from vitkit.runs.plan import Opened, Plan, plan_run
from vitkit.runs.processes import (
    begin_steps,
    divide_threads,
    invite,
    join_processes,
    lost_processes_explained,
)
from vitkit.runs.records import DIVERGED, keep_divergence
from vitkit.runs.start import find_start, load_start
from vitkit.runs.steps import RunPosition, fit
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.tasks import find_task
from vitkit.training.layer_rates import refuse_layers
from vitkit.training.trainer import Trainer
from vitkit.weights.saving import save_model
from vitkit.world import ALONE, World


def train_run(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    from_scratch: bool = False,
    command: str = "",
    opened: Opened | None = None,
    listener: Listener = SILENT,
) -> Path:
    """Train a run; see `vitkit.train`, whose arguments these are.

    Args:
        run: the run configuration.
        out: its folder.
        resume: whether `out` holds this run already; then only the paths of its images and its start may have
            changed.
        device, threads, from_scratch, listener: as for `vitkit.train`.
        command: the command line, which the run folder records.
        opened: the images and the start that were looked at already; left out, none.

    Returns:
        The run folder.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    world = join_processes(listener.warn)
    if not world.writes:
        _prepare_process(threads, world)
        return follow(world) or Path()
    if world.size > 1:
        listener = WorkingListener(listener, world.activity)
    _refuse_options(run, threads)
    _prepare_process(threads, world)  # now, because `plan_run` times steps for a budget of minutes
    given = None if out is None else Path(out)
    if given is not None:
        require_folder(given)
    plan = plan_run(run, given, device=device, opened=opened, keep=True, listener=listener)
    _refuse_run(plan, world)  # before a folder is made
    with claim(_owner(plan, resume), given, partial(_numbered, plan)) as folder, deterministic(plan.device):
        # Written before anything random happens: whoever kills the run from here on can continue it.
        plan = plan.in_folder(folder, command)
        position = RunPosition(command_to_continue(folder, threads, device, world))
        assert plan.compute is not None  # it has a folder now
        parts = build_parts(plan.run, plan.images, folder, listener, plan.compute, plan.record)
        _complete_until_stopped(plan, parts, from_scratch, position, world, listener)
    return folder


def _prepare_process(threads: int | None, world: World) -> None:
    """Set the threads of this process, and have it keep the memory that a step frees for the next one."""
    divide_threads(world, threads)
    keep_freed_memory()


def _complete_until_stopped(
    plan: Plan,
    parts: Parts,
    from_scratch: bool,
    position: RunPosition,
    world: World,
    listener: Listener,
) -> None:
    """Bring a run to its end, or to the point where a signal stops it.

    Raises:
        InterruptedTraining: a signal asked to stop; the message says how to continue.
        NonFiniteError: training diverged, which the run folder records.
    """
    with stop_signals() as stop, lost_processes_explained(world):
        try:
            (parts.folder / DIVERGED).unlink(missing_ok=True)  # the run is continued
            _complete(plan, parts, from_scratch, position, stop, world, listener)
        except NonFiniteError as error:
            keep_divergence(parts.folder, error)
            raise
        except StopRequest as request:
            raise position.interrupted(request) from None


def _complete(
    plan: Plan,
    parts: Parts,
    from_scratch: bool,
    position: RunPosition,
    stop: StopSignals,
    world: World,
    listener: Listener,
) -> None:
    """Bring a run to its end from its last checkpoint, its start, or new weights.

    Raises:
        StopRequest: a signal asked to stop; `position` holds where the run stands.
    """
    run, folder, model, device = plan.run, parts.folder, parts.model, plan.device
    with listener.progress("looking for checkpoints"):
        checkpoint = starting_point(folder, run, from_scratch, listener)
    if is_complete(parts, checkpoint):
        # The same command again computes nothing.
        listener.show([("", [f"This run has finished: {folder}"])])
        tell_set_aside(folder, listener)
        return
    # Weights come from the last checkpoint of the run's folder; else from its start; else they are new, and
    # the model has them already.
    if checkpoint is None and parts.start is not None:
        with listener.progress("reading the start"):
            start = plan.start or find_start(run.start)
            record = load_start(run, plan.images.class_names, folder, parts.start, start, model)
        parts = replace(parts, start=record)
    compute_as(model, parts.compute)
    surroundings = Surroundings(folder, f"{device}, {model.chosen.precision}", torch.get_num_threads())
    from_paper = [] if parts.start is None else departures(run, len(parts.data.splits["train"]))
    listener.show(first_screen(run, parts.data, model, surroundings, parts.start, from_paper))
    # The screen stands before everything that takes time.
    sharding = choose_sharding(model.config, run, device, world)
    if world.size == 1 and run.training.sharding not in ("auto", "replicas"):
        listener.note(
            f"--sharding {run.training.sharding} divides a run among processes, and there is one: start more "
            "with --processes, or by torchrun."
        )
    if sharding != "replicas":
        divided = f"among {world.size} processes ({sharding}, FSDP2)"
        listener.show([("sharding", [f"weights, gradients and optimiser are divided {divided}"])])
    invite(world, parts, checkpoint, plan.device_name, sharding)
    trainer, differences, parts = begin_steps(parts, checkpoint, device, world, listener, sharding)
    if checkpoint is not None:
        listener.show([("resumed", [f"from step {trainer.state.progress.step} ({checkpoint.name})"])])
        position.point = f"at step {trainer.state.progress.step}, which was committed before"
    listener.show(reading_rows(run, parts.data))
    for sentence in differences:
        listener.warn(sentence)
    require_locked(folder)
    fit(trainer, parts.rejects, position, stop, listener)
    position.point = "after the last step, which is committed, before the report was written"
    require_locked(folder)  # saving the model would make it anew
    try:
        _finish(plan, parts, trainer, listener)
    except FileNotFoundError as error:
        if folder.is_dir():
            raise
        raise moved_error(folder) from error


def _finish(plan: Plan, parts: Parts, trainer: Trainer, listener: Listener) -> None:
    """Write the model, the evaluations and the report of a run whose steps are done.

    The report is written last, because `is_complete` looks for it: after a kill, each file before it is whole
    or is written again from the final checkpoint.
    """
    folder, device = parts.folder, plan.device
    model, weights = take_final_weights(parts.model, trainer, listener)
    parts = replace(parts, model=model)
    save_model(model, folder)
    keep_examples(parts, trainer.evaluated_objective, device, listener)
    evaluate_finished(parts, device, listener)
    listener.show([("weights", [f"{weights.removeprefix('weights ')}: {folder / 'model.safetensors'}"])])
    parts.rejects.write()
    parts.rejects.tell(listener)
    trained = Trained(plan.recorded, model, plan.images.splits)
    listener.show([("report", [str(write_report(folder, trained=trained, listener=listener))])])
    tell_set_aside(folder, listener)


def check_run(
    run: Run, *, device: str = "auto", threads: int | None = None, opened: Opened | None = None
) -> None:
    """Refuse a run that `train_run` would refuse before it makes a folder.

    Raises:
        VitkitError: the data, the configuration or the machine does not allow the run.
    """
    _refuse_options(run, threads)
    _refuse_run(plan_run(run, None, device=device, opened=opened))


def foresee_run(
    run: Run,
    out: str | Path | None,
    *,
    resume: bool,
    device: str,
    threads: int | None,
    opened: Opened | None,
    listener: Listener,
) -> tuple[Plan, Path, bool]:
    """Plan a run as `train_run` does with the same arguments, and refuse what it refuses; nothing is written.

    Returns:
        The plan, the folder of the run, and whether the run has begun there.

    Raises:
        VitkitError: as `train_run`.
    """
    _refuse_options(run, threads)
    if threads is not None:
        torch.set_num_threads(threads)  # before steps are timed
    given = None if out is None else Path(out)
    if given is not None:
        require_folder(given)
    plan = plan_run(run, given, device=device, opened=opened, listener=listener)
    _refuse_run(plan)
    folder, has_begun = foresee(_owner(plan, resume), given, partial(_numbered, plan))
    return plan, folder, has_begun


def _numbered(plan: Plan) -> Iterator[Path]:
    """Yield the default folders of a run below `runs/`."""
    return numbered_folders(plan.run, plan.images.name)


def _refuse_options(run: Run, threads: int | None) -> None:
    """Refuse options that are wrong for any images."""
    require_data(run)
    if not run.model and not run.start.start:
        raise VitkitError(
            "This recipe begins from weights that are trained already: give them with --start, or begin with "
            "vitkit finetune START."
        )
    require_threads(threads)


def _refuse_run(plan: Plan, world: World = ALONE) -> None:
    """Refuse a run whose options fit neither its model and data nor this machine."""
    run, data, config = plan.run, plan.images, plan.config
    if run.training.patience is not None and "val" not in data.splits:
        raise VitkitError(
            "patience waits for a better validation, but there are no validation images: give "
            "--splits.val-fraction, or leave patience out."
        )
    learning = find_task(run.task).learning
    unfit = learning.explain_unfit(config, run.objective)
    if unfit:
        raise VitkitError(f"{run.model} {unfit}.")
    learning.learned(run.objective)  # refuses options of the loss that do not fit the task
    if run.fewshot.data:  # opened now, so that an error comes before anything is made
        from vitkit.evaluation.fewshot.data import open_fewshot_data

        open_fewshot_data(run.fewshot.data)
    if run.optimizer.freezes and not run.start.start:
        raise VitkitError(
            "freeze and freeze_layers keep weights as they are, and new ones know nothing: give a start "
            "(--start), or leave them out."
        )
    if run.optimizer.optimizer == "muon" and config.attention == "none":
        raise VitkitError(
            f"muon updates the matrices of a Transformer's blocks, and {run.model} has none: choose "
            "--optimizer adamw or sgd."
        )
    refuse_augmentation(run.augmentation, config.in_channels)
    require_memory(config, run, plan.device, world)
    refuse_layers(config.num_layers, run.optimizer)
    run.training.total_steps(len(data.splits["train"]))  # refuses numbers of steps that no run gets through


def command_to_continue(folder: Path, threads: int | None, device: str, world: World = ALONE) -> str:
    """Write the command that continues the run in a folder on the same machine, or machines."""
    command = f"vitkit train --resume {shlex.quote(str(folder))}"
    if world.size > world.on_machine:  # torchrun is started on each machine, with options of its own
        command = f"torchrun ... -m {command}"
    elif world.size > 1:
        command += f" --processes {world.size}"
    command += f" --threads {threads}" if threads is not None else ""
    return command + (f" --device {device}" if device != "auto" else "")


def _owner(plan: Plan, resume: bool) -> Owner:
    """Make the owner of a run's folder; with `resume`, the folder holds the run already."""

    def changes(folder: Path) -> list[str]:
        recorded = read_config(folder)["run"]
        return name_options(changed_options(recorded, str(folder / "config.json"), plan.run, moved=resume))

    def advise(folder: Path, changes: Sequence[str]) -> str:
        again = "" if resume else f" Continue it with vitkit train --resume {shlex.quote(str(folder))}."
        return again + train_longer(changes, folder)

    return Owner("run", "config.json", changes, advise=advise)
