"""`vitkit compare` as people call it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from vitkit.cli.main import run
from vitkit.models.config import Task
from vitkit.weights.model_card import ModelCard


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two checkpoints of random weights for the digits."""
    monkeypatch.chdir(tmp_path)
    for seed in (0, 1):
        made = vitkit.create_model("ViT-16x1x1/4", 10, 8)
        weights: Any = made.head.weight
        weights.data.copy_(weights.new_tensor(np.random.default_rng(seed).normal(size=tuple(weights.shape))))
        made.card = ModelCard("ViT-16x1x1/4", tuple("0123456789"), Task())
        vitkit.save_model(made, tmp_path / f"model{seed}")
    return "model0", "model1"


def test_speeds_are_printed_and_all_numbers_as_json(
    models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    line = "--data digits --speed-seconds 0.01 --threads 1"
    assert run(["compare", *models, *line.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "images per second" in text and "with 1 thread." in text and "more; --json has all." in text
    arguments = ["compare", *models, "--data", "digits", "--speed-seconds", "0", "--json", "--out", "here"]
    assert run(arguments) == 0
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["images"] == 1797 and comparison["folder"] == "here" and comparison["speeds"] is None
    first, second = comparison["first"], comparison["second"]
    assert comparison["difference"]["mean"] == pytest.approx(second["score"] - first["score"])
    assert len(comparison["classes"]) == 10 and first["numbers"]["count"] == 1797
    assert run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == comparison


def test_what_cannot_be_is_said_in_a_sentence(
    models: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        ("", "give images to test on with --data"),
        ("--data digits --split test", "has no test split"),
        ("--data digits --speed-seconds -1", "--speed-seconds is 0 or more"),
        ("--data digits --out model0/model.json", "--out names a folder"),
    ):
        assert run(["compare", *models, *options.split()]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert not Path("runs").exists()
