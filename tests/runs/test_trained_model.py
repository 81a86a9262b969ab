"""The images that a model was trained on, opened again."""

from pathlib import Path

import pytest

from tests.helpers.photos import noise_images
from vitkit.cli.main import run
from vitkit.errors import VitkitError
from vitkit.runs.start import load_model
from vitkit.runs.trained_model import open_model_data


def test_test_images_are_told_from_training_images_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image that is added changes how the others are cut: what was trained on would be tested."""
    root, out = noise_images(tmp_path / "data"), str(tmp_path / "run")
    options = ["--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0"]
    assert run(["train", "--data", str(root), "--steps", "1", "--threads", "1", "--out", out, *options]) == 0
    model = load_model(out)
    assert len(open_model_data(model).splits["test"]) == 5
    new = (root / "a" / "00.png").rename(root / "a" / "new.png")
    for again in ([], ["--data", str(root)]):
        assert run(["evaluate", out, *again]) == 1
        shown = " ".join(capsys.readouterr().err.split())
        assert "have changed since the model was trained" in shown and "give other images" in shown
    with pytest.raises(VitkitError, match="unclear which are test images"):
        open_model_data(model, str(root))
    new.rename(root / "a" / "00.png")
    assert run(["evaluate", out]) == 0
