"""`vitkit fewshot`, as people read it."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from vitkit.cli.main import run


def test_draws_that_are_all_alike_have_no_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    draw = np.random.default_rng(0)
    for label in "ab":
        for number in range(40):
            path = tmp_path / "photos" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    torch.manual_seed(0)
    model = vitkit.create_model("ViT-8x1x2/4", num_classes=2, image_size=8)
    vitkit.save_model(model, tmp_path / "start")
    options = ["--methods", "ridge", "--shots", "2,100", "--out", str(tmp_path / "out")]
    assert run(["fewshot", str(tmp_path / "start"), "--data", str(tmp_path / "photos"), *options]) == 0
    rows = dict(re.findall(r"^ridge +(\d+) +\S+%(.*)$", capsys.readouterr().out, re.M))
    assert " to " in rows["2"]
    assert " to " not in rows["100"] and "0.00%" in rows["100"]
