#!/usr/bin/env python
"""`vitkit predict FOLDER` beside a plain loop over timm's model: whole commands, start-up included.

    python -m benchmarks.folders PHOTOS [--cases Ti-1000x224 ...] [--rounds 3] [--out FOLDER]

PHOTOS is a folder of photos, from which folders of JPEGs of each case's size are made, enlarged with grain
where they are smaller. timm has the same random weights and the same resize, by Pillow in a DataLoader of 0
and of 2 workers. Contestants take turns; what is printed are medians of wall and CPU seconds, the speed over
the faster timm loop of the same precision, the highest memory (proportional shares of all processes) and the
answers equal to timm's in float32.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

import numpy as np
from PIL import Image

LOOP = """
import csv, sys
from pathlib import Path
import numpy as np, timm, torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

model, folder, precision, workers = sys.argv[1:]
network = timm.create_model("local-dir:" + model, pretrained=True).eval()
paths = sorted(Path(folder).iterdir())

class Photos(Dataset):
    def __len__(self): return len(paths)
    def __getitem__(self, index):
        image = Image.open(paths[index]).convert("RGB")
        scale = 248 / min(image.size)
        image = image.resize([max(248, int(side * scale)) for side in image.size], Image.Resampling.BICUBIC)
        left, top = (round((side - 224) / 2) for side in image.size)
        pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)
        return torch.from_numpy((pixels / 255 - 0.5) / 0.5).permute(2, 0, 1)

with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
    best = [network(batch).argmax(1) for batch in DataLoader(Photos(), 32, num_workers=int(workers))]
print("\\n".join(f"{path},{int(label)}" for path, label in zip(paths, torch.cat(best))))
"""
CASES = {
    "Ti-1000x224": ("vit_tiny_patch16_224", 1000, (224, 224)),
    "Ti-1000x500": ("vit_tiny_patch16_224", 1000, (500, 375)),
    "S-200x500": ("vit_small_patch16_224", 200, (500, 375)),
    "B-64x500": ("vit_base_patch16_224", 64, (500, 375)),
    "Ti-20x12MP": ("vit_tiny_patch16_224", 20, (4000, 3000)),
    "Ti-200x12MP": ("vit_tiny_patch16_224", 200, (4000, 3000)),
    "Ti-1x500": ("vit_tiny_patch16_224", 1, (500, 375)),
}
"""Model, number of photos, and their width and height."""
OURS = {
    "vitkit": ("--engine", "torch"),
    "vitkit, OpenVINO": ("--engine", "openvino"),
    "vitkit bf16": ("--precision", "bfloat16"),
    "vitkit bf16, OpenVINO": ("--engine", "openvino", "--precision", "bfloat16"),
}
SCALED = "vitkit, JPEGs at a scale"
"""The contestant whose model reads large JPEGs at a half, a quarter or an eighth: `--jpeg-side`."""
JPEG_SIDE = 512
MANY_PIXELS = 12_000_000
"""Photos of so many pixels are few different ones: to make one takes a second."""


@dataclass(frozen=True)
class Taken:
    """The time and memory that a command took, and what it answered."""

    wall: float
    cpu: float
    memory: float
    """MiB."""
    answers: tuple[str, ...]
    """The label of each photo, by path."""


def make_photos(photos: list[Path], folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Make a folder of JPEGs, unless it is there."""
    if folder.exists():
        return folder
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    rng, made = np.random.default_rng(0), 0
    different = 8 if size[0] * size[1] >= MANY_PIXELS else count
    while made < count:
        place = new / f"{made:04}.jpg"
        if made >= different:
            shutil.copy(new / f"{made % different:04}.jpg", place)
        else:
            with Image.open(photos[made % len(photos)]) as opened:
                pixels = np.asarray(opened.convert("RGB").resize(size, Image.Resampling.BICUBIC), np.int16)
            grainy = np.clip(pixels + rng.normal(0, 6, pixels.shape).astype(np.int16), 0, 255)
            Image.fromarray(grainy.astype(np.uint8)).save(place, quality=88)
        made += 1
    return new.rename(folder)


def make_model(name: str, folder: Path) -> Path:
    """Write a timm model of random weights, with a head that tells images apart, unless it is there."""
    if not folder.exists():
        import torch

        timm = import_module("timm")
        torch.manual_seed(0)
        model = timm.create_model(name)
        torch.nn.init.normal_(model.get_parameter("head.weight"), std=0.05)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
    return folder


def make_scaled(model: Path, folder: Path) -> Path:
    """Write the same weights as vitkit's model that reads JPEGs at a scale, unless it is there."""
    if not folder.exists():
        from vitkit import load_model, save_model
        from vitkit.weights.model_card import card_of, preprocessing_of

        loaded = load_model(model)
        rule = preprocessing_of(loaded)
        scaled = replace(rule, decode=replace(rule.decode, jpeg_side=JPEG_SIDE))
        loaded.card = replace(card_of(loaded), preprocessing=scaled)
        save_model(loaded, folder)
    return folder


def shares(process: int) -> float:
    """Give the MiB of a process and all that it has started, each page divided among those that share it."""
    total, left = 0.0, [process]
    while left:
        number = left.pop()
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
            for task in Path(f"/proc/{number}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (OSError, StopIteration):
            continue
    return total


def run(command: list[str], out: Path) -> Taken:
    before, start, highest = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), [0.0]
    with out.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.PIPE, text=True)
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(1.0):
                highest[0] = max(highest[0], shares(process.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        errors = process.communicate()[1]
        ended.set()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{errors}")
    wall, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = [line for line in out.read_text().splitlines() if line]
    if lines and lines[0].startswith("{"):
        answers = [(record["image"], record["predictions"][0]["class"]) for record in map(json.loads, lines)]
    else:
        answers = [(path, label) for path, _, label in (line.rpartition(",") for line in lines)]
    return Taken(wall, cpu, highest[0], tuple(label.split()[-1] for _, label in sorted(answers)))


def compare(case: str, photos: list[Path], folder: Path, rounds: int) -> None:
    name, count, size = CASES[case]
    images = make_photos(photos, folder / f"{count}-{size[0]}x{size[1]}", count, size)
    model, taken = make_model(name, folder / name), dict[str, list[Taken]]()
    commands = {
        f"timm {short}, {workers} workers": [
            *(sys.executable, "-c", LOOP, str(model), str(images), precision, str(workers))
        ]
        for short, precision in (("fp32", "float32"), ("bf16", "bfloat16"))
        for workers in (0, 2)
    }
    ours_of = {ours: (model, given) for ours, given in OURS.items()}
    if size[0] * size[1] >= MANY_PIXELS:
        ours_of[SCALED] = make_scaled(model, folder / f"{name}-scaled"), ("--engine", "torch")
    for ours, (checkpoint, given) in ours_of.items():
        options = [*("predict", str(checkpoint), str(images), "--top", "1", "--json"), *given]
        commands[ours] = [sys.executable, "-m", "vitkit", *options]
    first = dict[str, list[Taken]]()
    for number in range(rounds + 1):
        for contestant, command in commands.items():
            if number or contestant in ours_of:  # the first run makes kernels and graphs
                results = (taken if number else first).setdefault(contestant, [])
                results.append(run(command, folder / "answers"))
    print(f"\n{case}: {count} photos of {size[0]} x {size[1]}, {rounds} rounds")
    right = taken["timm fp32, 0 workers"][0].answers
    for contestant, results in taken.items():
        short = "bf16" if "bf16" in contestant else "fp32"
        base = min(
            (taken[f"timm {short}, {workers} workers"] for workers in (0, 2)),
            key=lambda runs: statistics.median(each.wall for each in runs),
        )
        ratios = sorted(b.wall / each.wall for b, each in zip(base, results, strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        wall, cpu = (statistics.median(getattr(each, part) for each in results) for part in ("wall", "cpu"))
        equal = sum(a == b for a, b in zip(results[0].answers, right, strict=True))
        print(
            f"  {contestant:<24}{wall:>7.2f} s{cpu:>8.2f} s CPU"
            f"{statistics.median(ratios):>7.2f} ({low:.2f}-{high:.2f})"
            f"{max(each.memory for each in results):>7.0f} MiB{equal:>6} equal"
            + (f"   first {first[contestant][0].wall:.2f} s" if contestant in first else ""),
            flush=True,
        )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.folders", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--cases", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/folders"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    os.environ["HF_HUB_OFFLINE"] = "1"
    for case in options.cases:
        compare(case, sorted(options.photos.rglob("*.jp*g")), options.out, options.rounds)


if __name__ == "__main__":
    main()
