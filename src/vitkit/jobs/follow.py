"""Take part in the steps of a run that another process plans, claims and writes."""

import socket
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.config import from_json
from vitkit.errors import VitkitError
from vitkit.listener import SILENT
from vitkit.runs.build import Parts, build_new
from vitkit.runs.config import Run, new_model_config, parse_compute
from vitkit.runs.data_record import RejectedFiles, read_record
from vitkit.runs.folder import kind_of
from vitkit.runs.machine import compute_as, deterministic, find_device
from vitkit.runs.plan import list_images
from vitkit.runs.processes import await_invitation, begin_steps, lost_processes_explained
from vitkit.runs.records import read_start_record
from vitkit.runs.steps import RunPosition, fit
from vitkit.runs.trained_model import run_card
from vitkit.signals import stop_signals
from vitkit.training.checkpoint import FOLDER
from vitkit.world import World


def follow(world: World) -> Path | None:
    """Take part in the steps of the next run of process 0.

    Returns:
        The folder of the run; None where there is no further one.

    Raises:
        VitkitError: the run's folder or images are not the same on this machine.
        StopRequest: a signal asked to stop; the current step is finished and committed.
    """
    invitation = await_invitation(world)
    if invitation is None:
        return None
    torch.set_num_threads(invitation.threads)
    folder, here = Path(invitation.folder), f"process {world.rank} on {socket.gethostname()}"
    if not (folder / "config.json").is_file():
        raise VitkitError(
            f"The run folder {folder} cannot be seen by {here}. Put it on a disk that all machines share."
        )
    place = kind_of(folder)
    run = from_json(Run, invitation.run, "the run of process 0")
    record, start = read_record(folder), read_start_record(folder)
    data = list_images(run, keep=True)
    if record is None or data.fingerprint() != invitation.fingerprint:
        raise VitkitError(
            f"The images of {run.data} differ between {here} and process 0: expected the fingerprint "
            f"{invitation.fingerprint}, found {data.fingerprint()}. All machines must see the same images."
        )
    # Process 0 alone evaluates the finished model: the test images are not read here.
    data = replace(
        data, splits={split: data.splits[split] for split in ("train", "val") if split in data.splits}
    )
    device = find_device(invitation.device)
    config = new_model_config(run, len(data.class_names)) if start is None else start.config
    # Process 0 shares its weights where no checkpoint is read.
    model = build_new(run, config, SILENT, drawn=invitation.checkpoint is not None)
    # Evaluators read the images of the run from the card.
    model.card = run_card(run, record, config, start)
    compute = parse_compute(place.require_config(), folder)
    parts = Parts(run, data, folder, model, RejectedFiles(folder, record), compute, start)
    compute_as(model, compute)
    checkpoint = None
    if invitation.checkpoint is not None:
        checkpoint = folder / FOLDER / invitation.checkpoint
    with deterministic(device), stop_signals() as stop, lost_processes_explained(world):
        trainer, _, parts = begin_steps(parts, checkpoint, device, world, sharding=invitation.sharding)
        fit(trainer, parts.rejects, RunPosition(""), stop, SILENT)
    return folder
