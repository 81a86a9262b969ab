"""What `vitkit predict` prints of names that somebody else gave."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.cli.main import run as command
from vitkit.weights.model_card import card_of

NAMES = ("[red]hot[/red]", "[/]", "plain", "[link=https://example.org]here[/link]")


def test_names_in_brackets_are_shown_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=4, image_size=8)
    with torch.no_grad():
        assert isinstance(model.head, torch.nn.Linear)
        model.head.bias.copy_(torch.tensor([3.0, 2.0, 1.0, 0.0]))
    model.card = replace(card_of(model), class_names=NAMES)
    vitkit.save_model(model, tmp_path / "model")
    image = tmp_path / "photo.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image)
    assert command(["predict", str(tmp_path / "model"), str(image), "--top", "4"]) == 0
    out = capsys.readouterr().out
    assert [name for name in NAMES if name not in out] == []
