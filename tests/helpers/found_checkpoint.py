"""The newest whole checkpoint of a run folder, and what stands above it."""

from pathlib import Path

from vitkit.training.checkpoint import survey


def find_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """Find the newest whole checkpoint of a run folder; None where there is none.

    Returns:
        Its folder, and a sentence for each newer one that is damaged or was never committed.
    """
    checkpoints = survey(run)
    sentences = [f"{path} is not used: {reason}." for path, reason in checkpoints.damaged.items()]
    sentences += [f"{path} was never committed: its save was cut short." for path in checkpoints.uncommitted]
    return checkpoints.whole, sentences
