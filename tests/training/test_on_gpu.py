"""The loop on a GPU: it waits for nothing. Skipped where there is none."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.training.small_run import TRAINING, small_trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")


def test_a_step_makes_the_processor_wait_for_nothing(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, micro_batch_size=4)
    trainer = small_trainer(tmp_path, config, device="cuda")
    assert trainer.lag == 1
    batches = list(trainer.loader.batches(0, 4))
    trainer.launch(batches[0], 0, 0.1)  # allocates
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [trainer.launch(batch, step, 0.1) for step, batch in enumerate(batches[1:], start=1)]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert all(numbers.read()["loss"] > 0 for numbers in launched)
