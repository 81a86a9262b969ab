"""The small runs that are damaged, killed and resumed, and what is compared of them."""

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
from PIL import Image

OPTIONS = [
    *("--model", "ViT-16x1x2/2", "--image-size", "8", "--batch-size", "16", "--warmup-steps", "5"),
    *("--log-every", "3", "--polyak", "0.99", "--threads", "1", "--dropout", "0.1", "--mixup", "0.2"),
    *("--no-flip", "--crop-area", "0.5", "1.0"),
]


def training(out: Path, *options: str, data: str = "digits", steps: int = 20, every: int = 10) -> list[str]:
    """The arguments of a training run that validates and checkpoints every so many steps."""
    often = ("--steps", str(steps), "--evaluate-every", str(every), "--checkpoint-every", str(every))
    return ["train", "--data", data, "--out", str(out), *OPTIONS, *often, *options]


def image_folder(folder: Path, images: int = 60) -> Path:
    """Class folders of small PNG files, half of them dark and half light."""
    generator = np.random.default_rng(0)
    for number in range(images):
        path = folder / ("dark" if number % 2 else "light") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 128, (9 + number % 5, 11, 3)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def ended_with(run: Path) -> dict[str, str]:
    """SHA-256 of all that a finished run ends with, by file: weights, log, evaluations, last checkpoint.

    Left out are what tells of the clock and the folder: speed.jsonl, the report, config.json.
    """
    files = [run / "model.safetensors", run / "model.json", run / "metrics.jsonl"]
    files += sorted((run / "evaluation").glob("*"))
    newest = max(whole_checkpoints(run).values(), default=None)
    if newest is not None:
        names = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json")
        files += [newest / name for name in names]
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "absent"
        for path in files
    }


def differences(run: Path, expected: dict[str, str]) -> list[str]:
    """The files in which a finished run is another than it should be."""
    hashes = ended_with(run)
    return [name for name in hashes.keys() | expected.keys() if hashes.get(name) != expected.get(name)]


def whole_checkpoints(run: Path) -> dict[int, Path]:
    """The committed checkpoints by step whose every byte is as the manifest says, found without vitkit."""
    checkpoints = {}
    folder = run / "checkpoints"
    for checkpoint in sorted(folder.glob("step-*")) if folder.is_dir() else []:
        try:
            manifest = _bytes(checkpoint / "manifest.json")
            if hashlib.sha256(manifest).hexdigest() != _bytes(checkpoint / "COMMIT").decode():
                continue
            described = json.loads(manifest)
            if all(
                hashlib.sha256(_bytes(checkpoint / name)).hexdigest() == record["sha256"]
                for name, record in described["files"].items()
            ):
                checkpoints[int(described["step"])] = checkpoint
        except (OSError, ValueError, KeyError):
            continue
    return checkpoints


def newest_step(run: Path) -> int:
    """The step of the newest whole checkpoint, -1 if there is none."""
    return max(whole_checkpoints(run), default=-1)


def _bytes(path: Path) -> bytes:
    """Contents of a regular file. Raises OSError for anything else."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is no file")
    return path.read_bytes()
