#!/usr/bin/env python
"""Measure the cost of input beside timm's: transforms in one thread, loaders with two workers.

    python benchmarks/input.py [--images FOLDER] [--repeats 7] [--json FILE]

The same JPEG files for both, of 224 x 224 and of 500 x 375 pixels: made from those of a folder, or synthetic.
Both sides take turns, so that a busy machine slows both; what counts is the ratio of one turn. vitkit hands
over uint8, and so does `timm uint8`, timm's cheapest way; `timm` hands over normalised floats, as it does on
a CPU by default. The cost is the CPU time of all processes for each image. Without timm, vitkit alone is
measured.
"""

import argparse
import json
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, features

from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.data.decode.image import decode, decoded_quickly
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import TrainLoader, evaluation_batches, sample_rng
from vitkit.data.transforms import RandomView, preprocess
from vitkit.jobs.convert import import_library
from vitkit.kernels.resample import prepare_resampling

SIZE, FRACTION, BATCH, WORKERS, FILES = 224, 0.875, 64, 2, 256
SHAPES = ((224, 224), (375, 500))
Side = Callable[[], int]
"""Does its work once and tells for how many images."""


def make_files(folder: Path, shape: tuple[int, int], originals: list[Path]) -> list[Path]:
    """JPEGs of one shape (height, width) in two class folders."""
    rng = np.random.default_rng(0)
    for name in "ab":
        (folder / name).mkdir(parents=True)
    paths = []
    for number in range(FILES):
        if originals:
            with Image.open(originals[number % len(originals)]) as file:
                image = file.convert("RGB")
        else:
            coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            image = Image.fromarray(coarse)
        pixels = np.asarray(image.resize(shape[::-1], Image.Resampling.BICUBIC)).astype(np.float32)
        pixels += rng.normal(0, 5, pixels.shape)  # grain, which enlarging took away
        paths.append(folder / "ab"[number % 2] / f"{number:04}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=90)
    return paths


def vitkit_sides(folder: Path, paths: list[Path], rounds: int) -> dict[str, Side]:
    rule, augmentation = Preprocessing((SIZE, SIZE), "crop", FRACTION), Augmentation(crop_area=(0.08, 1.0))
    samples = open_data(str(folder), Splits(0.0, 0.0)).splits["train"]
    ids = np.tile(np.arange(len(samples)), rounds)

    def evaluate() -> int:
        for path in paths:
            preprocess(decode(path), rule)
        return len(paths)

    def train() -> int:
        for number, path in enumerate(paths):
            image, view = decode(path), RandomView(rule, augmentation, sample_rng(0, 0, number))
            view.draw(*image.shape[:2])
            view.pixels(image)
        return len(paths)

    def evaluation_loader() -> int:
        return sum(len(b) for b in evaluation_batches(samples, rule, BATCH, WORKERS, indices=ids))

    def training_loader() -> int:
        loader = TrainLoader(samples, rule, augmentation, batch_size=BATCH, seed=0, workers=WORKERS)
        return sum(len(batch) for batch in loader.batches(0, len(ids) // BATCH))

    return {
        "evaluation transform": evaluate,
        "training transform": train,
        "evaluation loader": evaluation_loader,
        "training loader": training_loader,
    }


class Folder(torch.utils.data.Dataset[Any]):
    """Files as timm's dataset gives them."""

    def __init__(self, paths: list[Path], transform: Any) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> Any:
        with Image.open(self.paths[number]) as file:
            return self.transform(file.convert("RGB")), 0


def timm_sides(paths: list[Path], rounds: int, as_bytes: bool) -> dict[str, Side]:
    data, collate = import_library("timm").data, import_module("timm.data.loader").fast_collate
    shared = {"use_prefetcher": as_bytes, "interpolation": "bilinear"}
    kinds = {
        "evaluation": data.create_transform(SIZE, is_training=False, crop_pct=FRACTION, **shared),
        "training": data.create_transform(SIZE, is_training=True, color_jitter=None, **shared),
    }

    def transform(kind: str) -> Side:
        def run() -> int:
            for path in paths:
                with Image.open(path) as file:
                    kinds[kind](file.convert("RGB"))
            return len(paths)

        return run

    def loader(kind: str) -> Side:
        def run() -> int:
            batches: Any = torch.utils.data.DataLoader(
                Folder(paths * rounds, kinds[kind]),
                BATCH,
                shuffle=kind == "training",
                num_workers=WORKERS,
                collate_fn=collate if as_bytes else None,
            )
            return sum(len(images) for images, _ in batches)

        return run

    sides = {f"{kind} transform": transform(kind) for kind in kinds}
    return sides | {f"{kind} loader": loader(kind) for kind in kinds}


def cost(side: Side) -> tuple[float, float]:
    """(CPU, elapsed) microseconds an image, over this process and the workers that ended meanwhile."""
    before, start = _cpu_seconds(), time.perf_counter()
    images = side()
    elapsed = time.perf_counter() - start
    return 1e6 * (_cpu_seconds() - before) / images, 1e6 * elapsed / images


def _cpu_seconds() -> float:
    who = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in who)


def compare(sides: dict[str, dict[str, Side]], repeats: int) -> list[dict[str, Any]]:
    """One record for each piece of work: medians of each side, and ratios to vitkit with their spread."""
    records = []
    for work, ours in sides["vitkit"].items():
        turns = {name: list[tuple[float, float]]() for name in sides}
        ours()  # caches of the disk, libraries
        for _ in range(repeats):
            for name, works in sides.items():
                turns[name].append(cost(works[work]))
        record: dict[str, Any] = {"work": work}
        for name, figures in turns.items():
            record[f"{name}: CPU us an image"] = round(statistics.median(cpu for cpu, _ in figures))
            record[f"{name}: elapsed us an image"] = round(statistics.median(t for _, t in figures))
            if name != "vitkit":
                ratios = sorted(
                    theirs[0] / own[0] for theirs, own in zip(figures, turns["vitkit"], strict=True)
                )
                record[f"{name} / vitkit"] = [
                    round(value, 2) for value in (statistics.median(ratios), ratios[0], ratios[-1])
                ]
        records.append(record)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help="a folder of JPEGs to make the files from")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=6, help=f"how often a loader reads the {FILES} files")
    parser.add_argument("--json", type=Path, help="where the records are written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        peer: str | None = import_library("timm").__version__
    except ImportError as error:
        peer = None
        print(f"timm cannot be imported ({error}); vitkit alone is measured. See scripts/test-peers.")
    originals = sorted(options.images.rglob("*.jpg"))[:FILES] if options.images else []
    results: dict[str, Any] = {
        "machine": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "pillow": f"{version('pillow')}, libjpeg-turbo {features.version_feature('libjpeg_turbo')}",
        "timm": peer,
        "compiled resize": prepare_resampling(),
        "originals": str(options.images) if originals else "synthetic",
        "records": [],
    }
    with tempfile.TemporaryDirectory() as temporary:
        for shape in SHAPES:
            folder = Path(temporary) / f"{shape[0]}"
            paths = make_files(folder, shape, originals)
            results["simplejpeg"] = decoded_quickly(paths[0].read_bytes(), "RGB", shape) is not None
            sides = {"vitkit": vitkit_sides(folder, paths, options.rounds)}
            if peer:
                sides["timm uint8"] = timm_sides(paths, options.rounds, as_bytes=True)
                sides["timm"] = timm_sides(paths, options.rounds, as_bytes=False)
            for record in compare(sides, options.repeats):
                named = {
                    "shape": shape,
                    "bytes a file": sum(p.stat().st_size for p in paths) // len(paths),
                    **record,
                }
                results["records"].append(named)
                print(json.dumps(named), flush=True)
    print(json.dumps({key: value for key, value in results.items() if key != "records"}))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
