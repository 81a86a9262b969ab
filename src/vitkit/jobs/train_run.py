"""Train a run, evaluate its model and write its report; or show what a run would do."""

import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitkit._version import __version__
from vitkit.config import from_json, read, to_json, write
from vitkit.data.stream.loader import worker_count
from vitkit.durable import moved_error
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation.ridge import PENALTIES
from vitkit.jobs.recipes import departures
from vitkit.jobs.report import Trained, write_report
from vitkit.jobs.trackers import EVENTS, TrackingListener
from vitkit.listener import SILENT, Listener
from vitkit.models.config import Card, Compute, Levels
from vitkit.models.zoo import ModelConfig
from vitkit.runs import budget, build, closed_form, machine, processes, records, steps, trained_model
from vitkit.runs import plan as planning
from vitkit.runs.config import Run, changed_options, name_options, read_config
from vitkit.runs.folder import Owner, claim, folders_for, numbered_folders, require_locked
from vitkit.runs.start import find_start, load_start, starting_point, tell_set_aside
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.tasks import answering_of
from vitkit.text import format_bytes, format_duration, join_names, pluralize, tree_levels
from vitkit.training.checkpoint import FOLDER
from vitkit.training.config import Sharding
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of
from vitkit.world import ALONE, World


@dataclass(frozen=True)
class Invitation:
    """The run for the processes that follow process 0."""

    folder: Path
    run: Run
    """Its configuration: as recorded in the folder, but for options of memory and loading."""
    fingerprint: str
    """The fingerprint of its images, which must be the same everywhere."""
    config: ModelConfig
    card: Card
    """The card of its model; evaluators read the images of the run from it."""
    rejects: trained_model.RejectedFiles
    compute: Compute
    sharding: Sharding
    """The division of its state among the processes."""
    checkpoint: str | None
    """The name of the checkpoint that it continues from; None: it begins with the weights of process 0."""
    device: str
    threads: int
    """CPU threads of each process."""


def train_run(
    run: Run,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    from_scratch: bool = False,
    dry_run: bool = False,
    command: str = "",
    opened: planning.Opened | None = None,
    given: Mapping[str, Any] = planning.NOTHING,
    listener: Listener = SILENT,
) -> Path:
    """Train a run; see `vitkit.train`, whose arguments these are.

    Args:
        run: the run configuration.
        out: its folder.
        resume: whether `out` holds this run already; then only the paths of its images and its start may have
            changed.
        device, threads, from_scratch, dry_run, listener: as for `vitkit.train`.
        command: the command line, which the run folder records.
        opened: the images and the start that were looked at already; left out, none.
        given: options that a length in minutes leaves as they are, as for `choose_length`.

    Returns:
        The run folder; with `dry_run` the one that the run would have.

    Raises:
        VitkitError, InterruptedTraining: as `vitkit.train`.
    """
    world = processes.join_processes(listener.warn)
    processes.divide_threads(world, threads)  # now, because `plan_run` times steps for a budget of minutes
    machine.keep_freed_memory()
    if run.start.head == "ridge" and world.size > 1:
        raise VitkitError("A ridge head is solved by one process: leave --processes out, or torchrun.")
    if not world.writes:  # of a dry run process 0 alone tells
        return Path() if dry_run else follow(world) or Path()  # the caller needs no folder
    own, keep = None if out is None else Path(out), not dry_run
    plan = planning.plan_run(
        run, own, device=device, opened=opened, keep=keep, given=given, world=world, listener=listener
    )
    owner, numbered = _owner(plan, resume), partial(numbered_folders, plan.images.name, plan.run.model)
    if dry_run:
        folder, has_begun = next(folders_for(owner, own, numbered))
        _preview(plan, folder, has_begun, listener)
        return folder
    ordered = machine.deterministic(plan.device, plan.run.training.fast)
    with claim(owner, own, numbered) as folder, ordered:
        if (folder / EVENTS).is_dir() and not isinstance(listener, TrackingListener):
            listener = TrackingListener((), listener)  # which continues them without their names
        if (folder / "config.json").exists():
            recorded = read_config(folder)
        else:
            # Before anything random happens: a run that is killed from here on can be continued.
            chosen = budget.choose_way(plan.run, plan.config, plan.device)
            recorded = {"vitkit_version": __version__, "command": command}
            recorded |= {"run": to_json(plan.run), "compute": to_json(chosen)}
            write(folder / "config.json", recorded)
        way: Any = recorded.get("compute")
        compute = from_json(Compute, way, f"{folder / 'config.json'}: compute")
        if plan.record is not None:  # a default folder may hold the run already, with the record of its start
            plan = replace(plan, record=read(records.StartRecord, folder / records.START_FILE) or plan.record)
        parts = build.build_parts(
            plan.run, plan.images, folder, listener, compute, plan.config, plan.device, plan.record, world
        )
        with stop_signals() as stop, processes.lost_processes_explained(world):
            stop.point = "before the first step"
            try:
                (folder / records.DIVERGED).unlink(missing_ok=True)  # the run is continued
                _complete(plan, parts, recorded, from_scratch, stop, listener)
            except NonFiniteError as error:
                write(folder / records.DIVERGED, records.Divergence(str(error)))
                raise
            except StopRequest as request:
                again = command_to_continue(folder, threads, device, world)
                where = f"{stop.point} ({request})"
                raise machine.InterruptedTraining(where, again, request.number) from None
    return folder


def _complete(
    plan: planning.Plan,
    parts: build.Parts,
    recorded: Mapping[str, Any],
    from_scratch: bool,
    stop: StopSignals,
    listener: Listener,
) -> None:
    """Bring a run to its end from its last checkpoint, its start, or new weights.

    Args:
        plan, parts, recorded: the run, its parts, and the contents of its `config.json`.
        from_scratch, listener: as for `train_run`.
        stop: the signals that stop it; its point is kept up to date.

    Raises:
        StopRequest: a signal asked to stop; `stop.point` says where the run stands.
    """
    run, folder, model, world = plan.run, parts.folder, parts.model, parts.world
    with listener.progress("looking for checkpoints"):
        checkpoint = starting_point(folder, run, from_scratch, listener)
    is_ridge = run.start.head == "ridge"
    if closed_form.is_complete(folder) if is_ridge else steps.is_complete(parts, checkpoint):
        # The same command again computes nothing.
        listener.show([("", [f"This run has finished: {folder}"])])
        tell_set_aside(folder, listener)
        return
    # Weights come from the last checkpoint of the run's folder; else from its start; else they are new, and
    # the model has them already.
    if checkpoint is None and plan.record is not None:
        with listener.progress("reading the start"):
            plan = replace(plan, record=load_start(parts, plan.record, plan.start or find_start(run.start)))
    from_paper = [] if plan.record is None else departures(run, len(parts.data.splits["train"]))
    listener.show(planning.first_screen(plan, model, folder, from_paper))
    # The screen stands before everything that takes time.
    if is_ridge:
        require_locked(folder)
        _finish(plan, _solve_head(plan, parts, listener), recorded, "head", listener)
        height, width = model.config.image_size
        # What the features and the classes depend on: other pixels or classes would be another comparison.
        alike = ["--image-size", str(height), *([str(width)] if width != height else [])]
        alike += ["--levels"] if run.splits.levels else []
        full = f"{shlex.join(['vitkit', 'finetune', run.start.start, run.data, *alike])}, then vitkit compare"
        listener.show(
            [("compare", ["the backbone stays as it is, which may cost accuracy; to measure it:", full])]
        )
        return
    sharding = planning.choose_sharding(model.config, run, parts.device, world)
    if world.size == 1 and run.training.sharding not in ("auto", "replicas"):
        listener.note(
            f"--sharding {run.training.sharding} divides a run among processes, and there is one: start more "
            "with --processes, or by torchrun."
        )
    if run.training.fast and parts.device.type == "cpu":
        listener.note("--fast changes nothing here: a processor adds up in one order anyway.")
    if sharding != "replicas":
        divided = f"among {world.size} processes ({sharding}, FSDP2)"
        listener.show([("sharding", [f"weights, gradients and optimiser are divided {divided}"])])
    if world.size > 1:
        invitation = Invitation(
            folder=folder.absolute(),
            run=run,
            fingerprint=parts.data.fingerprint(),
            config=model.config,
            card=model.card,
            rejects=parts.rejects,
            compute=model.chosen,
            sharding=sharding,
            checkpoint=None if checkpoint is None else checkpoint.name,
            device=plan.device_name,
            threads=torch.get_num_threads(),
        )
        world.tell(invitation)
    trainer, differences, parts = build.begin_steps(parts, checkpoint, listener, sharding)
    if checkpoint is not None:
        listener.show([("resumed", [f"from step {trainer.state.progress.step} ({checkpoint.name})"])])
        stop.point = f"at step {trainer.state.progress.step}, which was committed before"
    listener.show(planning.reading_rows(run, parts.data))
    for sentence in differences:
        listener.warn(sentence)
    require_locked(folder)
    steps.fit(trainer, parts.rejects, stop, listener)
    stop.point = "after the last step, which is committed, before the report was written"
    require_locked(folder)  # saving the model would make it anew
    try:
        model, weights = steps.take_final_weights(parts.model, trainer, listener)
        parts = replace(parts, model=model)
        training = run.training
        precision = machine.prepare(model, training.precision, training.exact, "evaluation")
        steps.learn_refusal(parts, precision, listener)
        save_model(model, folder)
        steps.keep_examples(parts, trainer.evaluated_objective, listener)
        _finish(plan, parts, recorded, weights.removeprefix("weights "), listener)
    except FileNotFoundError as error:
        if folder.is_dir():
            raise
        raise moved_error(folder) from error


def _solve_head(plan: planning.Plan, parts: build.Parts, listener: Listener) -> build.Parts:
    """Solve the head of a run in closed form, and write its model with the images that it learned from.

    Raises:
        VitkitError: a class has no training image that can be read.
    """
    run, data, train = plan.run, parts.data, parts.data.splits["train"]
    backbone, unseen = closed_form.backbone_images(plan.start or find_start(run.start), listener)
    workers = worker_count(train, run.loading)
    images, rejects, _ = closed_form.compute_images(train, parts.model, parts.device, workers, listener)
    parts.rejects.of_split["train"].update(rejects)
    counts = zip(data.class_names, images.counts(len(data.class_names)), strict=True)
    if empty := [name for name, count in counts if not count]:
        raise VitkitError(
            f"No training image of {join_names(empty)} can be read, and a head in closed form learns from "
            "one of each class at least. Add images, or leave the class out."
        )
    images = replace(images, backbone=backbone, record=closed_form.Record(unseen=unseen))
    head = closed_form.refit(images, len(data.class_names))
    levels = Levels((None,) * len(tree_levels(data.class_names))) if run.splits.levels else None
    parts.model.card = replace(card_of(parts.model), class_names=data.class_names, levels=levels)
    model, _ = closed_form.write_model(parts.folder, parts.model, head, images, len(images))
    right = f"left out in turn, {head.right / len(images):.2%} are right"
    chosen = f"penalty {head.penalty:g}, temperature {1 / head.scale:.3g}"
    listener.show([("head", [f"of {pluralize(len(images), 'image')}; {right}; {chosen}"])])
    if head.penalty == PENALTIES[-1]:
        listener.warn(
            "The head hardly differs from guessing: without an image, the others say next to nothing of it. "
            "Add images, ten of each class say."
        )
    if lines := answering_of(model.card).describe_levels(model.card):
        listener.show([("levels", lines)])
    closed_form.measure_head(parts.folder, model, images, head, listener)
    return replace(parts, model=model.to(parts.device))


def _finish(
    plan: planning.Plan, parts: build.Parts, recorded: Mapping[str, Any], weights: str, listener: Listener
) -> None:
    """Write the evaluations and the report of a run whose model is written.

    The report is written last, because `is_complete` looks for it: after a kill, each file before it is whole
    or is written again from the final checkpoint.
    """
    folder = parts.folder
    steps.evaluate_finished(parts, listener)
    listener.show([("weights", [f"{weights}: {folder / 'model.safetensors'}"])])
    parts.rejects.write()
    parts.rejects.tell(listener)
    trained = Trained(recorded, parts.model, plan.images.splits)
    listener.show([("report", [str(write_report(folder, trained=trained, listener=listener))])])
    tell_set_aside(folder, listener)


def _preview(plan: planning.Plan, folder: Path, has_begun: bool, listener: Listener) -> None:
    """Show data, splits, start, model, length, time, memory and folder of a run; nothing is written."""
    run, data, config = plan.run, plan.images, plan.config
    compute = budget.choose_way(run, config, plan.device)
    model = build.build_new(run, config, compute, listener, drawn=False)
    from_paper = [] if plan.record is None else departures(run, len(data.splits["train"]))
    listener.show(planning.first_screen(plan, model, folder, from_paper))
    if run.start.head != "ridge":
        cost = budget.measure_cost(run, data, config, plan.device, listener)
        free = planning.free_memory(plan.device)
        room = "" if free is None else f", {format_bytes(free)} are free"
        time = (
            f"about {format_duration(cost.seconds)} for {pluralize(cost.steps, 'step')} and the evaluations"
        )
        memory = f"{format_bytes(cost.memory)} at most for a step, beside PyTorch's own{room}"
        listener.show([("time", [f"{time} (measured on a few)"]), ("memory", [memory])])
    if has_begun:
        listener.show([("begun", [f"{folder} holds this run already: the command goes on with it"])])


def command_to_continue(folder: Path, threads: int | None, device: str, world: World = ALONE) -> str:
    """Write the command that continues the run in a folder on the same machine, or machines."""
    command = f"vitkit train --resume {shlex.quote(str(folder))}"
    if world.size > world.on_machine:  # torchrun is started on each machine, with options of its own
        command = f"torchrun ... -m {command}"
    elif world.size > 1:
        command += f" --processes {world.size}"
    command += f" --threads {threads}" if threads is not None else ""
    return command + (f" --device {device}" if device != "auto" else "")


def _owner(plan: planning.Plan, resume: bool) -> Owner:
    """Make the owner of a run's folder; with `resume`, the folder holds the run already."""

    def changes(folder: Path) -> list[str]:
        recorded = read_config(folder)["run"]
        return name_options(changed_options(recorded, str(folder / "config.json"), plan.run, moved=resume))

    def advise(folder: Path, changes: Sequence[str]) -> str:
        name = shlex.quote(str(folder))
        advice = "" if resume else f" Continue it with vitkit train --resume {name}."
        if {change.split()[0] for change in changes} & {"--steps", "--epochs", "--minutes"}:
            advice += f" To train it for longer, begin a new one from it: vitkit train --start {name}."
        return advice

    return Owner("run", "config.json", changes, advise=advise)


def follow(world: World) -> Path | None:
    """Take part in the steps of the next run of process 0.

    Returns:
        The folder of the run; None where there is no further one.

    Raises:
        VitkitError: the run's folder or images are not the same on this machine.
        StopRequest: a signal asked to stop; the current step is finished and committed.
    """
    invitation: Invitation | None = processes.await_message(world)
    if invitation is None:
        return None
    torch.set_num_threads(invitation.threads)
    run, folder = invitation.run, invitation.folder
    here = f"process {world.rank} on {socket.gethostname()}"
    if not (folder / "config.json").is_file():
        raise VitkitError(
            f"The run folder {folder} cannot be seen by {here}. Put it on a disk that all machines share."
        )
    data = planning.list_images(run, keep=True)
    if data.fingerprint() != invitation.fingerprint:
        raise VitkitError(
            f"The images of {run.data} differ between {here} and process 0: expected the fingerprint "
            f"{invitation.fingerprint}, found {data.fingerprint()}. All machines must see the same images."
        )
    # Process 0 alone evaluates the finished model: the test images are not read here.
    data = replace(data, splits={split: data.splits[split] for split in data.splits if split != "test"})
    device = machine.find_device(invitation.device)
    # Process 0 shares its weights where no checkpoint is read.
    drawn = invitation.checkpoint is not None
    model = build.build_new(run, invitation.config, invitation.compute, SILENT, drawn)
    model.card = invitation.card
    parts = build.Parts(run, data, folder, model, invitation.rejects, device, world)
    checkpoint = folder / FOLDER / invitation.checkpoint if invitation.checkpoint is not None else None
    ordered = machine.deterministic(device, run.training.fast)
    with ordered, stop_signals() as stop, processes.lost_processes_explained(world):
        trainer, _, parts = build.begin_steps(parts, checkpoint, sharding=invitation.sharding)
        steps.fit(trainer, parts.rejects, stop, SILENT)
    return folder
