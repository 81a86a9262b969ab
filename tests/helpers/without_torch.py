"""Run Python where PyTorch cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path


def environment_without_torch(folder: Path, packages: Path | None = None) -> dict[str, str]:
    """Return an environment in which `torch` cannot be imported.

    Args:
        folder: where that `torch` is written.
        packages: a folder of modules that are found before those that are installed.
    """
    stub = folder / "without"
    stub.mkdir(exist_ok=True)
    (stub / "torch.py").write_text("raise ImportError('no torch here')\n")
    source = Path(__file__).parents[2] / "src"
    paths = [stub, source, *([] if packages is None else [packages])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def run_without_torch(folder: Path, *arguments: str, packages: Path | None = None) -> str:
    """Run Python with a `torch` that cannot be imported, and return what it prints."""
    environment = environment_without_torch(folder, packages)
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
