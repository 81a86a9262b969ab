"""A model with hostile class names, images, and paths that are no files, for tests of the command line."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

HOSTILE = "cat\x1b]0;owned\x07\u202egnp\x9b2J"
SHOWN = r"cat\x1b]0;owned\x07\u202egnp\x9b2J"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\x7f")


def write_folder(root: Path) -> None:
    """Write a model whose first class has a hostile name, and images of two classes, into a folder."""
    model = create_model("ViT-16x1x2/4", num_classes=2, image_size=(16, 16))
    with torch.no_grad():
        model.get_parameter("head.weight").normal_(generator=torch.Generator().manual_seed(0))
    model.card = replace(model.card, class_names=(HOSTILE, "dog"))
    save_model(model, root / "model")
    for name in ("a", "b"):
        (root / "images" / name).mkdir(parents=True)
        for seed in range(5):
            pixels = np.random.default_rng(seed).integers(0, 255, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(root / "images" / name / f"{seed}.png")
    (root / "text.txt").write_text("no image")
    (root / "loop").symlink_to("loop")
    (root / "empty").mkdir()
