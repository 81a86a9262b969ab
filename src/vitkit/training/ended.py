"""A run that has ended for good: its checkpoints are removed, and a record of the last one stays.

ended.json   the last step, and the environment that it was computed in

The runs of a series end so: with many of them, checkpoints that nobody continues would fill the disk.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.config import Count, read, write
from vitkit.durable import refuse_links, remove_leftovers
from vitkit.training.checkpoint import FOLDER, newest_first, read_manifest, remove, survey

RECORD = "ended.json"


@dataclass(frozen=True)
class Ended:
    """The contents of `ended.json`."""

    step: Count
    """The step of the last checkpoint."""
    environment: Mapping[str, Any]
    """The environment that it was computed in, as its manifest had it."""


def read_ended(run: Path) -> Ended | None:
    """Read the record of a run's removed checkpoints; None where they were not removed.

    Raises:
        VitkitError: the record is damaged.
    """
    return read(Ended, run / RECORD)


def remove_checkpoints(run: Path) -> None:
    """Remove the checkpoints of a run whose model and result are written; damaged ones set aside stay.

    A kill at any moment leaves whole checkpoints or none, and the same call goes on. Without a whole
    checkpoint nothing is removed: there is something to look into.

    Raises:
        VitkitError: the checkpoints cannot be read, or are behind a link.
        OSError: the disk refused.
    """
    refuse_links(run)
    last = survey(run).whole
    if last is not None:
        manifest = read_manifest(last)
        # Before anything is removed: a run with this record is not trained again for want of a checkpoint.
        write(run / RECORD, Ended(manifest.step, manifest.environment))
    elif not (run / RECORD).exists():
        return
    for checkpoint in reversed(newest_first(run / FOLDER)):  # the last one goes last
        remove(checkpoint)
    for leftover in (run / FOLDER).glob(".step-*.tmp"):  # of a removal that was cut short
        remove(leftover)
    remove_leftovers(run)  # of a kill while the record was written: nothing else is written there any more
