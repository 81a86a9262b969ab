"""Evaluation of many images and many classes within few descriptors and little memory.

In a real process, so that its limits are real.
"""

import subprocess
import sys
from pathlib import Path

import pytest

EVALUATION = """
import resource, sys, threading
from pathlib import Path
import numpy as np
import scipy.special  # of the intervals: a library's own memory is not what is limited
import torch
from vitkit.data.stream.loader import evaluation_batches
from vitkit.data.transforms import Preprocessing
from vitkit.evaluation import predictions, run_model
from vitkit.evaluation.classify import classification
from vitkit.models.config import Card
from vitkit.runs.trained_model import read_evaluations, write_evaluation
from vitkit.tasks import answering_of

count, classes, batch_size, files, memory, parts = map(int, sys.argv[1:7])
loss, run = sys.argv[7], Path(sys.argv[8])
# Stacks of threads, 8 MB each, count as memory, and machines have more or fewer threads.
threading.stack_size(256 << 10)
torch.set_num_threads(1)
predictions.PART //= parts
predictions.IN_MEMORY = run_model.IN_MEMORY = run_model.IN_MEMORY // parts


class Noise:
    targets = {"labels": np.arange(count) % classes}

    def __len__(self):
        return count

    def key(self, index):
        return str(index)

    def decode(self, index):
        return np.random.default_rng(index).integers(0, 256, (2, 2, 3), np.uint8)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, classes))
model.register_forward_pre_hook(lambda _, inputs: (inputs[0] / 64,))
batches = evaluation_batches(Noise(), Preprocessing((2, 2)), batch_size, workers=2)
# The process's own memory: pages of mapped files are the system's, which takes them back when it needs them.
own = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(own.split()[1]) * 1024 + memory
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
made = run_model.predict(model, batches, loss=loss, folder=run)
result = classification(made, [str(i) for i in range(classes)])
write_evaluation(run, "test", result, made)
found, loaded = read_evaluations(run, answering_of(Card()))["test"]
assert found == result and (loaded.predicted == made.predicted).all() and result.count == count
"""


def evaluate(*arguments: object) -> None:
    command = [sys.executable, "-c", EVALUATION, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_neither_the_logits_nor_a_descriptor_of_a_batch_are_kept(tmp_path: Path) -> None:
    """64 MB of logits, of which no copy is allowed: only what scoring a part of them, a small one, needs. And
    250 batches, of which each would keep two or three descriptors, with room for 64."""
    evaluate(8_000, 2_000, 32, 64, 56 << 20, 8, "softmax", tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_imagenet_21k_within_2_gib(tmp_path: Path, loss: str) -> None:
    """50,000 images of 21,843 classes: 4.4 GB of logits, and 3.8 GB of a dense confusion matrix."""
    evaluate(50_000, 21_843, 16, 256, 2 << 30, 1, loss, tmp_path)
