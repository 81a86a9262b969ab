"""Find where a run begins or goes on, from what is in its folder, and set damaged files aside."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from vitkit.durable import hash_file, read_json, remove_leftovers
from vitkit.errors import VitkitError
from vitkit.jobs.listener import Listener
from vitkit.jobs.run_config import Run, changed_options
from vitkit.training.checkpoint_files import (
    list_set_aside,
    read_manifest,
    set_aside,
    survey,
    sweep,
)
from vitkit.training.trainer import LOG


def starting_point(folder: Path, run: Run, from_scratch: bool, listener: Listener) -> Path | None:
    """Find the checkpoint to continue from, None to begin at step 0; leftovers of killed processes are
    removed.

    Args:
        folder: the run folder, locked.
        run: its options.
        from_scratch: begin at step 0 where every checkpoint is damaged.
        listener: hears what was damaged and removed.

    Raises:
        VitkitError: every checkpoint is damaged, or there is none while `from_scratch` would pass over a
            whole one; one cannot be read; or the options are not those that the checkpoint was made with.
    """
    found = survey(folder)
    if found.lost and not from_scratch:
        reasons = "\n  ".join(f"{path}: {reason}" for path, reason in found.damaged.items())
        raise VitkitError(
            f"None of the checkpoints of {folder} is whole:\n  {reasons}\nNothing was changed. Put them back "
            "from a copy; or add --from-scratch, which begins again at step 0 and keeps these under other "
            "names; or start a new run with another --out."
        )
    if found.whole is not None:
        if from_scratch:
            raise VitkitError(
                f"{found.whole} is whole: leave --from-scratch out to continue from it, or start a new run "
                "with another --out."
            )
        _require_same_options(found.whole, run, listener)
    for path in found.uncommitted:
        listener.note(f"{path} was never committed, because its save was cut short: removed.")
    for (path, reason), kept in zip(found.damaged.items(), sweep(folder, found), strict=True):
        _tell_damage(path, reason, kept, listener)
    if found.lost and (folder / LOG).exists():
        kept = set_aside(folder / LOG)
        listener.warn(f"The log of the run so far is kept as {kept}.")
    for written in (folder, folder / "evaluation"):
        remove_leftovers(written)
    return found.whole


def keep_damaged(damaged: Mapping[Path, str], listener: Listener) -> None:
    """Set damaged checkpoints aside, those that are still there, and say so."""
    for path, reason in damaged.items():
        if path.exists():
            _tell_damage(path, reason, set_aside(path), listener)


def tell_set_aside(folder: Path, listener: Listener) -> None:
    """Say what of a run was damaged and is still there, and how it is cleared away."""
    kept = list_set_aside(folder)
    if kept:
        listener.warn("\n  ".join(["Damaged and set aside, now or earlier:", *map(str, kept)]))
        listener.note(f"Remove it with:\n  rm -r {' '.join(shlex.quote(str(path)) for path in kept)}")


def model_is_whole(folder: Path) -> bool:
    """Whether model.json belongs to model.safetensors: a kill may have happened between writing the two.

    A description without a record of its weights, as early versions wrote it, is taken at its word.
    """
    try:
        description = read_json(folder / "model.json")
        weights = description.get("weights")
        if weights is None:
            return True
        return hash_file(folder / "model.safetensors") == (weights["bytes"], weights["sha256"])
    except (OSError, VitkitError, AttributeError, KeyError, TypeError):
        return False  # in doubt, both are written again


def _require_same_options(checkpoint: Path, run: Run, listener: Listener) -> None:
    recorded = read_manifest(checkpoint).configuration
    if recorded is None:
        listener.warn(
            f"{checkpoint.name} was made by a version that did not write the options into it: config.json is "
            "taken as it is."
        )
        return
    changes = changed_options(recorded, str(checkpoint / "manifest.json"), run, moved=True)
    if changes:
        raise VitkitError(
            "A run is continued with the options it was begun with, but config.json was edited since "
            f"{checkpoint}:\n  "
            + "\n  ".join(changes)
            + "\nPut back what stands at the left, or start a new "
            "run with another --out."
        )


def _tell_damage(path: Path, reason: str, kept: Path, listener: Listener) -> None:
    listener.warn(f"{path} is not whole: {reason}. It is kept as {kept}.")
    listener.note(f"  To remove it: rm -r {shlex.quote(str(kept))}")
