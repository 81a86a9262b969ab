"""Evaluation of many images and many classes within few descriptors and little memory.

Real processes, so that their limits are real.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

DESCRIPTORS = """
import json, resource, sys
from pathlib import Path
import numpy as np
import torch
from vitkit.data.stream.loader import evaluation_batches
from vitkit.data.transforms import Preprocessing
from vitkit.evaluation.classify import classification
from vitkit.evaluation.run_model import predict

count, batch_size, limit = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


class Grey:
    targets = {"labels": np.arange(count) % 10}

    def __len__(self):
        return count

    def key(self, index):
        return str(index)

    def decode(self, index):
        return np.full((2, 2, 3), index % 256, np.uint8)


class Mean(torch.nn.Module):
    def forward(self, images):
        return images.float().mean((1, 2, 3))[:, None] * torch.linspace(-1, 1, 10)


batches = evaluation_batches(Grey(), Preprocessing((2, 2)), batch_size, workers=2)
result = classification(predict(Mean(), batches), [str(i) for i in range(10)])
print(json.dumps({"count": result.count, "descriptors": len(list(Path("/proc/self/fd").iterdir()))}))
"""

MEMORY = """
import json, resource, sys
from pathlib import Path
import scipy.special  # of the intervals: a library's own memory is not what is limited
import torch
from vitkit.runs.trained_model import read_evaluations, write_evaluation
from vitkit.models.config.card import Card
from vitkit.tasks import answering_of
from vitkit.data.stream.loader import Batch
from vitkit.evaluation import predictions, run_model
from vitkit.evaluation.classify import classification
from vitkit.evaluation.run_model import predict

predictions.PART //= int(sys.argv[6])
predictions.IN_MEMORY = run_model.IN_MEMORY = run_model.IN_MEMORY // int(sys.argv[6])
count, classes, run = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, classes))


def batches():
    for start in range(0, count, 128):
        ids = torch.arange(start, min(start + 128, count))
        images = torch.randn(len(ids), 3, 2, 2, generator=torch.Generator().manual_seed(start))
        yield Batch(images, {"labels": ids % classes}, torch.ones(len(ids), dtype=torch.bool), ids)


# The process's own memory: pages of mapped files are the system's, which takes them back when it needs them.
own = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(own.split()[1]) * 1024 + int(sys.argv[5])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
made = predict(model, batches(), loss=sys.argv[4], folder=run)
result = classification(made, [str(i) for i in range(classes)])
write_evaluation(run, "test", result, made)
found, loaded = read_evaluations(run, answering_of(Card()))["test"]
assert found == result and (loaded.predicted == made.predicted).all()
print(json.dumps({"count": result.count}))
"""


def measured(script: str, *arguments: object) -> dict[str, int]:
    result = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-2000:]
    counters: dict[str, int] = json.loads(result.stdout)
    return counters


def test_no_descriptor_is_kept_of_a_batch() -> None:
    """300 batches, of which each would keep two or three, with room for 64."""
    counters = measured(DESCRIPTORS, 300, 1, 64)
    assert counters["count"] == 300 and counters["descriptors"] < 32


@pytest.mark.slow
def test_no_descriptor_is_kept_of_2501_batches() -> None:
    assert measured(DESCRIPTORS, 20_001, 8, 256)["count"] == 20_001


def test_memory_does_not_hold_the_logits(tmp_path: Path) -> None:
    """64 MB of logits, of which no copy is allowed: only what scoring a part of them, a small one, needs."""
    assert measured(MEMORY, 8_000, 2_000, tmp_path, "softmax", 56 << 20, 8) == {"count": 8_000}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_imagenet_21k_within_2_gib(tmp_path: Path, loss: str) -> None:
    """50,000 images of 21,843 classes: 4.4 GB of logits, and 3.8 GB of a dense confusion matrix."""
    assert measured(MEMORY, 50_000, 21_843, tmp_path, loss, 2 << 30, 1) == {"count": 50_000}
