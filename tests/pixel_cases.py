"""Images, and how timm, torchvision and transformers describe what they do to them before a model.

`python -m tests.peers.pixels --write` runs those libraries and writes what they make of the images, at some
pixels, to `tests/fixtures/o_pixels.npz`; `tests/weights/test_position_rules.py` compares vitkit's with it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.models.config import ViTConfig
from vitkit.weights.files.source import Source
from vitkit.weights.formats import torchvision
from vitkit.weights.formats.huggingface_processor import read_pixels, read_rule
from vitkit.weights.formats.timm import Settings

SHAPES = ((683, 1024), (1024, 683), (299, 301), (224, 224), (375, 500), (400, 17), (17, 400), (3, 1), (1, 3))
"""(height, width)"""


@dataclass(frozen=True)
class PixelCase:
    """One evaluation transform of another library."""

    name: str
    library: Literal["timm", "huggingface", "torchvision"]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """timm: of `pretrained_cfg`. huggingface: `preprocessor_config.json`. torchvision: what its
    `ImageClassification` takes."""
    size: tuple[int, int] = (224, 224)
    """Height and width of the model's images."""
    width: int = 768
    """torchvision: of the model, whose weights it tells apart."""
    patch: int = 16


def timm(crop_pct: float, interpolation: str, crop_mode: str = "center", **more: Any) -> PixelCase:
    settings = {"crop_pct": crop_pct, "interpolation": interpolation, "crop_mode": crop_mode}
    settings |= {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    size = more.get("size", (224, 224))
    name = f"timm {crop_mode} {crop_pct} {interpolation} {size[0]}x{size[1]}"
    return PixelCase(name, "timm", settings, **more)


def huggingface(name: str, kind: str, **settings: Any) -> PixelCase:
    settings["image_processor_type"] = f"{kind}ImageProcessor"
    return PixelCase(f"huggingface {name}", "huggingface", settings)


def swag(side: int) -> dict[str, Any]:
    return {"crop_size": side, "resize_size": side, "interpolation": "bicubic"}


CROP = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
CASES = (
    timm(0.875, "bilinear"),
    timm(0.9, "bicubic"),
    timm(0.95, "bicubic"),
    timm(1.0, "bicubic"),
    timm(1.1, "bilinear"),
    timm(0.9, "lanczos"),
    timm(0.95, "nearest"),
    timm(0.9, "bicubic", size=(224, 160)),
    timm(1.0, "bicubic", "squash"),
    timm(0.9, "bicubic", "squash"),
    timm(0.9, "bicubic", "border"),
    timm(1.0, "bilinear", "border"),
    huggingface("stretched", "ViT", size={"height": 224, "width": 224}, resample=2),
    huggingface("one number", "ViT", size=224, resample=3),
    huggingface("DeiT", "DeiT", size={"height": 256, "width": 256}, resample=3, **CROP),
    huggingface("DeiT, odd", "DeiT", size=251, resample=1, **CROP),
    huggingface("BiT", "Bit", size={"shortest_edge": 256}, resample=3, **CROP),
    huggingface("BiT, odd", "Bit", size=249, resample=2, **CROP),
    huggingface("borders", "Bit", size={"shortest_edge": 201}, resample=2, **CROP),
    huggingface("nearest", "Bit", size={"shortest_edge": 240}, resample=0, **CROP),
    huggingface("not resized", "Bit", do_resize=False, **CROP),
    PixelCase("torchvision vit_b_16", "torchvision", {"crop_size": 224}),
    PixelCase("torchvision vit_l_16", "torchvision", {"crop_size": 224, "resize_size": 242}, width=1024),
    PixelCase("torchvision vit_b_16 SWAG", "torchvision", swag(384), size=(384, 384)),
    PixelCase("torchvision vit_h_14 SWAG linear", "torchvision", swag(224), width=1280, patch=14),
)


def image(shape: tuple[int, int]) -> NDArray[np.uint8]:
    """An image (height, width, 3) of patches of a few pixels and of noise, the same everywhere.

    Whole numbers alone make it, so that no release of NumPy draws another. The levels stay away from 0 and
    255: where a filter overshoots and is cut off there, it matters which side is resized first, and releases
    of Pillow differ in that.
    """
    rows, columns, channels = np.meshgrid(*(np.arange(n, dtype=np.int64) for n in (*shape, 3)), indexing="ij")

    def scattered(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
        mixed = (a * 73856093) ^ (b * 19349663) ^ (channels * 83492791)
        return ((mixed * 2654435761) >> 15) & 255

    patches, noise = scattered(rows // 6, columns // 7), scattered(rows, columns)
    return (48 + 5 * (3 * patches + noise) // 32).astype(np.uint8)


def sample(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Some rows and columns of an image, first and last among them: (10, 10, 3)."""
    rows, columns = (np.linspace(0, side - 1, 10).astype(int) for side in pixels.shape[:2])
    return np.asarray(pixels[rows[:, None], columns])


ALLOWED = 1
"""Levels by which a pixel may differ from the other library's."""


def source(settings: dict[str, Any]) -> Source:
    """A checkpoint without tensors and with these JSON files."""
    tensors: dict[str, Tensor] = {}

    class Described(Source):
        def read_beside(self, name: str) -> dict[str, Any]:
            return dict(settings.get(name, {}))

    return Described(Path("model.safetensors"), {}, tensors.__getitem__)


def preprocessing_of_case(case: PixelCase) -> Preprocessing:
    if case.library == "timm":
        config = {"architecture": "vit_base_patch16_224", "pretrained_cfg": dict(case.settings)}
        settings = Settings(source({"config.json": config}))
        return settings.pixel_rule(case.size, tuple(case.settings["mean"]))
    if case.library == "torchvision":
        model = ViTConfig(case.size, (case.patch, case.patch), case.width, 1, 16, 4, num_classes=1)
        return torchvision.preprocessing_for(model)
    files = source({"preprocessor_config.json": dict(case.settings)})
    rule = read_rule(files, read_pixels(files, 3)[0], case.size)
    assert not files.notes  # nothing of theirs is left out
    return rule
