"""Take part in the steps of a run that another process plans, claims and writes."""

import socket
from dataclasses import replace
from pathlib import Path

import torch

from vitkit.errors import VitkitError
from vitkit.listener import SILENT
from vitkit.runs.build import Parts, build_new
from vitkit.runs.machine import compute_as, deterministic, find_device
from vitkit.runs.plan import list_images
from vitkit.runs.processes import Invitation, await_message, begin_steps, lost_processes_explained
from vitkit.runs.steps import RunPosition, fit
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
    invitation: Invitation | None = await_message(world)
    if invitation is None:
        return None
    torch.set_num_threads(invitation.threads)
    run, folder, compute = invitation.run, invitation.folder, invitation.compute
    here = f"process {world.rank} on {socket.gethostname()}"
    if not (folder / "config.json").is_file():
        raise VitkitError(
            f"The run folder {folder} cannot be seen by {here}. Put it on a disk that all machines share."
        )
    data = list_images(run, keep=True)
    if data.fingerprint() != invitation.fingerprint:
        raise VitkitError(
            f"The images of {run.data} differ between {here} and process 0: expected the fingerprint "
            f"{invitation.fingerprint}, found {data.fingerprint()}. All machines must see the same images."
        )
    # Process 0 alone evaluates the finished model: the test images are not read here.
    data = replace(
        data, splits={split: data.splits[split] for split in ("train", "val") if split in data.splits}
    )
    device = find_device(invitation.device)
    # Process 0 shares its weights where no checkpoint is read.
    model = build_new(run, invitation.config, SILENT, drawn=invitation.checkpoint is not None)
    model.card = invitation.card
    compute_as(model, compute)
    parts = Parts(run, data, folder, model, invitation.rejects, compute)
    checkpoint = None
    if invitation.checkpoint is not None:
        checkpoint = folder / FOLDER / invitation.checkpoint
    with deterministic(device), stop_signals() as stop, lost_processes_explained(world):
        trainer, _, parts = begin_steps(parts, checkpoint, device, world, sharding=invitation.sharding)
        fit(trainer, parts.rejects, RunPosition(""), stop, SILENT)
    return folder
