"""A task without labels and without answers, rotation prediction, costs 2 new files and 3 edited ones.

The files and the edits are applied to a copy of the package, which then trains as the package itself does.
All commands run in one process: importing PyTorch takes longer than most of them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit

NEW = {"training/rotations.py": "objective.py.txt", "tasks/rotations.py": "learning.py.txt"}
"""The files of the task in the package, and what is written into them."""

EDITED = {
    "models/config.py": [('"mae"]', '"mae", "rotations"]')],
    "training/config.py": [
        (
            "ObjectiveConfig = ClassificationConfig | MaskedImagesConfig\n",
            '''@dataclass(frozen=True)
class RotationsConfig:
    """Rotation prediction."""

    turns: int = 4
    """Number of quarter turns among which is chosen."""


ObjectiveConfig = ClassificationConfig | MaskedImagesConfig | RotationsConfig
''',
        ),
        ('    "mae": MAEConfig,\n', '    "mae": MAEConfig,\n    "rotations": RotationsConfig,\n'),
    ],
    "tasks/__init__.py": [
        (
            "MULTI_LABEL, SIMMIM, Learning\n",
            "MULTI_LABEL, SIMMIM, Learning\nfrom vitkit.tasks.rotations import RotationsLearning\n",
        ),
        ("\n}\n", '\n    "rotations": Task(RotationsLearning(), None),\n}\n'),
    ],
}
"""The files of the package that know tasks by name, and what changes in them."""

PROGRAM = """
import json, sys
from pathlib import Path
import vitkit.jobs.train_run
from vitkit.cli.main import run
from vitkit.training.trainer import Trainer

OPTIONS = (
    "--model ViT-16x1x2/4 --image-size 16 --steps 12 --batch-size 8 --micro-batch-size 4 --warmup-steps 1 "
    "--learning-rate 0.02 --polyak 0.9 --evaluate-every 3 --checkpoint-every 2 --workers 0 --threads 1"
).split()

def call(*arguments):
    print("$", *arguments, flush=True)
    return run(list(arguments))

def train(out, *more):
    return call("train", "--task", "rotations", "--data", "images", *OPTIONS, "--out", out, *more)

vitkit.jobs.train_run.write_report = lambda folder, **_: folder  # its pictures take seconds
codes = {"whole": train("whole", "--turns", "2")}
launch = Trainer.launch

def killed(self, batch, step, rate):
    if step == 7:
        raise KeyError("killed")
    return launch(self, batch, step, rate)

Trainer.launch = killed
try:
    train("killed", "--turns", "2")
except KeyError:
    pass
Trainer.launch = launch
codes["begun"] = Path("killed/model.safetensors").exists()
codes["resumed"] = call("train", "--resume", "killed")
codes["predict"] = call("predict", "whole", "images/0.png")
codes["folds"] = train("folds", "--cross-validate", "2")
codes["wide"] = train("wide", "--image-size", "16", "32")
print(json.dumps(codes))
"""


Done = tuple[Path, dict[str, Any], str]
"""A folder with runs of the task, how each command ended, and all that was printed."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """Train twice, once killed and resumed; and try what the task refuses."""
    folder = tmp_path_factory.mktemp("rotations")
    source = Path(vitkit.__file__).parent
    package = folder / "source" / "vitkit"
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
    for name, written in NEW.items():
        assert not (package / name).exists()
        shutil.copyfile(Path(__file__).parent / "rotations" / written, package / name)
    for name, changes in EDITED.items():
        text = (package / name).read_text()
        for old, new in changes:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (package / name).write_text(text)
    for number in range(48):
        # Dark above and light below, so that a turn can be seen.
        shade = np.linspace(number, 255 - number, 32).astype(np.uint8)[:, None, None]
        (folder / "images").mkdir(exist_ok=True)
        Image.fromarray(np.broadcast_to(shade, (32, 32, 3)).copy()).save(folder / f"images/{number}.png")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "source")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def test_it_is_trained_validated_and_resumed_to_the_same_bits(trained: Done) -> None:
    assert len(NEW) <= 2 and len(EDITED) <= 3
    folder, codes, printed = trained
    assert codes["whole"] == codes["resumed"] == 0 and not codes["begun"], printed
    last = "checkpoints/step-00000012"
    files = {path.name for path in (folder / "whole" / last).glob("*.safetensors")}
    assert files >= {"objective.safetensors", "averaged_objective.safetensors", "average.safetensors"}
    for name in ("model.safetensors", "metrics.jsonl", *(f"{last}/{name}" for name in files)):
        assert (folder / "killed" / name).read_bytes() == (folder / "whole" / name).read_bytes(), name
    run = json.loads((folder / "whole/config.json").read_text())["run"]
    assert run["task"] == "rotations" and run["objective"] == {"turns": 2}
    lines = [json.loads(line) for line in (folder / "whole/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "validation"]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.05
    progress = json.loads((folder / "whole/checkpoints/step-00000012/state.json").read_text())
    assert (progress["best_value"], progress["best_step"]) == (min(losses), 3 * losses.index(min(losses)) + 3)


def test_what_needs_answers_or_labels_is_refused(trained: Done) -> None:
    folder, codes, printed = trained
    assert not (folder / "whole/evaluation").exists()
    for name, sentence in (
        ("folds", "leave --cross-validate out"),
        ("predict", "answers nothing"),
        ("wide", "do not fit when they are turned"),
    ):
        assert codes[name] != 0 and sentence in printed, (name, printed)
