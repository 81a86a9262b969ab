"""Runs of `vitkit train` in processes of their own, which tests kill and continue."""

import contextlib
import subprocess
import sys
from pathlib import Path

from vitkit.training.checkpoint import survey

SMALL = [
    *("--model", "ViT-16x1x2/2", "--image-size", "8", "--batch-size", "16", "--steps", "120"),
    *("--warmup-steps", "5", "--evaluate-every", "20", "--checkpoint-every", "5", "--log-every", "3"),
    *("--polyak", "0.99", "--threads", "1", "--dropout", "0.1", "--mixup", "0.2", "--no-flip"),
    *("--crop-area", "0.5", "1.0"),
]


def command(out: Path, *options: str) -> list[str]:
    """Return the command that trains a small model in a process of its own."""
    return [sys.executable, "-m", "vitkit", "train", "--out", str(out), *options, *SMALL]


def finish(out: Path, *options: str) -> None:
    """Train in a process to the end, without a word of damage."""
    result = subprocess.run(command(out, *options), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not whole" not in result.stderr and "set aside" not in result.stderr


def results(run: Path) -> dict[str, bytes]:
    """Read everything that a run ends with: weights, optimiser, average, progress, log, finished model."""
    checkpoints = survey(run)
    checkpoint = checkpoints.whole
    assert checkpoint is not None and not checkpoints.damaged and not checkpoints.uncommitted
    files = [*checkpoint.glob("*.safetensors"), checkpoint / "state.json"]
    contents = {path.name: path.read_bytes() for path in files}
    finished = {"log": "metrics.jsonl", "finished": "model.safetensors"}
    return contents | {name: (run / file).read_bytes() for name, file in finished.items()}


def children(process: int) -> list[int]:
    """List the processes that a process has started, in the order in which it started them."""
    with contextlib.suppress(FileNotFoundError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(number) for number in text.split()]
    return []
