"""`python -m tests.peers.pixels`: how far vitkit's pixels are from those of other libraries, in levels.

With `--write` some pixels of theirs are kept as `tests/fixtures/o_pixels.npz`. Exits with 1 if any pixel
differs by more than one level.
"""

import importlib
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tests.fixture_files import FOLDER
from tests.pixel_cases import ALLOWED, CASES, SHAPES, PixelCase, image, preprocessing_of_case, sample
from vitkit.data.transforms import preprocess
from vitkit.jobs.convert import import_library

MORE_SHAPES = tuple((37 + 61 * i % 701, 29 + 97 * i % 911) for i in range(1, 25))
"""Compared here and not kept."""


def theirs(case: PixelCase, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What the library makes of an image (H, W, 3), before it becomes numbers."""
    whole = Image.fromarray(pixels)
    if case.library == "timm":
        create: Any = importlib.import_module("timm.data").create_transform
        names = ("crop_pct", "interpolation", "crop_mode", "mean", "std")
        settings = {name: case.settings[name] for name in names}
        out = np.asarray(create((3, *case.size), use_prefetcher=True, **settings)(whole))
    elif case.library == "torchvision":
        transforms: Any = importlib.import_module("torchvision.transforms._presets")
        kind = getattr(transforms.InterpolationMode, case.settings.get("interpolation", "bilinear").upper())
        settings = {**case.settings, "interpolation": kind, "mean": (0.0,) * 3, "std": (1.0,) * 3}
        out = (255 * transforms.ImageClassification(**settings)(whole)).round().byte().numpy()
    else:
        kind = case.settings["image_processor_type"]
        name = kind.removesuffix("ImageProcessor").lower()
        module = importlib.import_module(f"transformers.models.{name}.image_processing_pil_{name}")
        settings = {key: value for key, value in case.settings.items() if key != "image_processor_type"}
        processor = getattr(module, f"{kind}Pil")(**settings, do_rescale=False, do_normalize=False)
        out = processor(whole, return_tensors="np")["pixel_values"][0]
    return np.ascontiguousarray(np.moveaxis(np.asarray(out), 0, -1).astype(np.uint8))


def main(arguments: list[str]) -> int:
    import_library("timm")
    samples = {}
    failed = False
    print("| transform | largest difference (levels) | mean | pixels that differ |")
    print("|---|---|---|---|")
    for case in CASES:
        preprocessing = preprocessing_of_case(case)
        differences = []
        for shape in (*SHAPES, *MORE_SHAPES):
            pixels = image(shape)
            expected = theirs(case, pixels)
            if shape in SHAPES:
                samples[f"{case.name}: {shape[0]}x{shape[1]}"] = sample(expected)
            ours = preprocess(pixels, preprocessing).astype(int)
            differences.append(np.abs(ours - expected).ravel())
        every = np.concatenate(differences)
        failed |= int(every.max()) > ALLOWED
        print(f"| {case.name} | {every.max()} | {every.mean():.2g} | {(every > 0).mean():.2%} |", flush=True)
    if "--write" in arguments:
        np.savez_compressed(FOLDER / "o_pixels.npz", **samples)  # type: ignore[arg-type]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
