"""A run whose batch does not fit into the memory of a GPU goes on with fewer images at a time."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.jobs.hearing import Hearing
from vitkit.jobs import train_run as training
from vitkit.training.config import TrainingConfig
from vitkit.training.gradients import Gradients

pytestmark = pytest.mark.usefixtures("without_report")


def short(**options: Any) -> vitkit.Run:
    return vitkit.Run(
        data="digits",
        model="ViT-32x2x4/4",
        preprocessing=replace(vitkit.recipe("digits").preprocessing, image_size=(8, 8)),
        training=TrainingConfig(
            steps=4, batch_size=16, checkpoint_every=2, evaluate_every=4, select="last", **options
        ),
    )


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "step-00000004" / "model.safetensors").read_bytes()


def test_a_gpu_that_is_too_small_takes_fewer_images_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artificial lack of memory: no GPU is asked."""
    add_up, tried = Gradients._add_up, list[int]()

    def cramped(gradients: Gradients, batch: Any, step: int, valid: int) -> Any:
        tried.append(gradients.size)
        if gradients.size > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return add_up(gradients, batch, step, valid)

    monkeypatch.setattr(Gradients, "_add_up", cramped)
    heard = Hearing()
    whole = vitkit.train(short(), tmp_path / "whole", listener=heard)
    assert tried == [16, 8, 4, 4, 4, 4]
    (warning,) = [line for line in heard.warnings if "Out of memory" in line]
    assert "at step 1: from here on 4 images are computed at a time" in warning
    micro_batched = vitkit.train(short(micro_batch_size=4), tmp_path / "asked")
    assert weights(whole) == weights(micro_batched)

    killed = tmp_path / "killed"  # after step 3
    shutil.copytree(whole, killed)
    shutil.rmtree(killed / "checkpoints" / "step-00000004")
    for name in ("model.safetensors", "model.json", "report.html"):
        (killed / name).unlink()
    tried.clear()
    heard = Hearing()
    # Whoever runs out of memory may continue with recomputing, too, to the same bits.
    training.train_run(short(recompute=True), killed, resume=True, listener=heard)
    assert tried == [4, 4] and weights(killed) == weights(whole)
    assert not [line for line in heard.warnings if "micro_batch" in line]
