"""Fine-tune a start in timm's own model, with timm's transforms, optimiser and schedule, in a plain loop.

Everything that can be left out is left out, so that timm's defaults hold; where its functions have none, the
value is that of its `train.py`, or the usual one for fine-tuning a ViT, and stands at the line. Only
`photos.py` imports this file, and only where timm is installed.
"""

import random
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitkit.jobs.convert import import_library

EVALUATION_BATCH = 128


def finetune_in_timm(
    start: Path, data: Path, *, rate: float, steps: int, batch_size: int, image_size: int, seed: int
) -> tuple[float, float]:
    """Fine-tune on the photos of `data/train`, and measure on those of `data/test`.

    Args:
        start: a folder in timm's format, as `vitkit.convert` writes it.
        data: `train/` and `test/` with class folders.
        rate: the peak of the learning rate.
        steps: updates of the weights.
        batch_size: images for each of them.
        image_size: pixels a side, for which the start was converted.
        seed: of the order, the augmentation and dropout.

    Returns:
        Accuracy from 0 to 1 and mean cross entropy in nats, of the test photos by the last weights.
    """
    timm = import_library("timm")
    for part in ("data", "loss", "optim", "scheduler"):
        import_module(f"timm.{part}")
    # timm's transforms draw from the global generators of all three and can be handed none of their own.
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    classes = sorted(path.name for path in (data / "train").iterdir())
    paths, labels = list_photos(data / "train", classes)
    model = timm.create_model(f"local-dir:{start}", pretrained=True)
    model.reset_classifier(len(classes))
    # As in vitkit and the paper: weights that are equal before the first step are those of the head too.
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    shape = (3, image_size, image_size)
    settings = timm.data.resolve_data_config({"input_size": shape}, model=model)
    pixels = {name: settings[name] for name in ("input_size", "mean", "std")}
    augment = timm.data.create_transform(**pixels, is_training=True)
    preprocess = timm.data.create_transform(**settings)
    optimizer = timm.optim.create_optimizer_v2(model, "adamw", lr=rate, weight_decay=0.05, layer_decay=0.75)
    # train.py warms up for 5 epochs; of the usual 50 to 100 that is a tenth.
    schedule, _ = timm.scheduler.create_scheduler_v2(
        optimizer, num_epochs=1, warmup_epochs=0.1, step_on_epochs=False, updates_per_epoch=steps
    )
    loss_of = timm.loss.LabelSmoothingCrossEntropy(0.1)
    photos = [_read(path) for path in paths]
    order = _shuffled(len(photos))
    model.train()
    for step in range(steps):
        schedule.step_update(step)
        chosen = [next(order) for _ in range(min(batch_size, len(photos)))]
        images = torch.stack([augment(photos[i]) for i in chosen])
        optimizer.zero_grad()
        loss_of(model(images), labels[chosen]).backward()
        optimizer.step()
    return _measure(model, *list_photos(data / "test", classes), preprocess)


def list_photos(folder: Path, classes: list[str]) -> tuple[list[Path], Tensor]:
    """List the files of class folders, with their labels: the places of their classes in the list."""
    pairs = [
        (file, number) for number, name in enumerate(classes) for file in sorted((folder / name).glob("*"))
    ]
    return [file for file, _ in pairs], torch.tensor([number for _, number in pairs])


def _measure(model: Any, paths: list[Path], labels: Tensor, preprocess: Any) -> tuple[float, float]:
    model.eval()
    with torch.inference_mode():
        parts = [
            model(torch.stack([preprocess(_read(path)) for path in paths[i : i + EVALUATION_BATCH]]))
            for i in range(0, len(paths), EVALUATION_BATCH)
        ]
    logits = torch.cat(parts)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return float(accuracy), float(torch.nn.functional.cross_entropy(logits, labels))


def _read(path: Path) -> Image.Image:
    with Image.open(path) as file:
        return file.convert("RGB")


def _shuffled(count: int) -> Iterator[int]:
    """Yield the numbers below `count` for ever, each once in a pass, in a new order every time."""
    while True:
        yield from torch.randperm(count).tolist()
