"""A run that has not ended, or one of its checkpoints: what is known of its model, and its weights."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.jobs.data_record import read_record
from vitkit.jobs.run_config import Run, read_run
from vitkit.jobs.run_folder import run_card
from vitkit.training.checkpoint import load_weights, weights_file
from vitkit.training.checkpoint_files import (
    FOLDER,
    find_damage,
    read_manifest,
    read_progress,
    step_name,
    survey,
)
from vitkit.training.ended import read_ended
from vitkit.weights.card import ModelCard


@dataclass(frozen=True)
class CommittedModel:
    """A checkpoint of a run as a model."""

    run: Run
    card: ModelCard
    which: str
    """The choice of the checkpoint, in words: "its best checkpoint, step 120"."""
    file: Path
    sha256: str
    read: Callable[[], dict[str, Tensor]]


def read_stopped_run(folder: Path, which: Literal["end", "best", "last"]) -> CommittedModel:
    """Find a checkpoint of a run, which may still be going; nothing is changed.

    Args:
        folder: the run folder.
        which: the best checkpoint or the last; "end": the best there is so far.

    Raises:
        VitkitError: it has none that is whole, or lacks the record of its images.
    """
    run, record, last = read_run(folder), read_record(folder), survey(folder).whole
    if last is None and read_ended(folder) is not None:
        raise VitkitError(
            f"{folder} is a run of a series and has finished, so its checkpoints were removed and none is "
            "left to begin from. Leave --start-from out: its model is taken."
        )
    if last is None or record is None:
        raise VitkitError(
            f"{folder} has no checkpoint yet, so there are no trained weights to begin from. Let it train "
            f"on: vitkit train --resume {folder}"
        )
    chosen, words = last, "its last checkpoint"
    best = read_progress(last).best_step
    if which != "last" and best is not None:
        chosen, words = last.with_name(step_name(best)), "its best checkpoint"
        reason = None if chosen == last else find_damage(chosen)
        if reason is not None:
            raise VitkitError(
                f"{chosen}, the best checkpoint, is not whole: {reason}. Give --start-from last to begin "
                f"from {FOLDER}/{last.name}."
            )
    file, step = weights_file(chosen), read_progress(chosen).step
    card = run_card(run, record, record.fingerprint, run.model)
    return CommittedModel(
        run,
        replace(card, origin={**card.origin, "weights": f"{words} of step {step}"}),
        f"{words}, step {step:,}",
        file,
        read_manifest(chosen).files[file.name].sha256,
        lambda: load_weights(chosen),
    )
