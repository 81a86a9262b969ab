"""Check that a bundle's model computes here what it did where it was exported; or name what is in photos.

python check.py              says at which level this machine departs, if at any, and how far
python check.py PHOTO...     names the most probable classes of photos

vitkit export writes this file into every bundle. It needs numpy, Pillow, and onnxruntime or openvino, and no
vitkit. Exit codes: 0 as when exported, 1 not so, or a photo cannot be read.
"""

import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

Pixels = NDArray[np.uint8]  # (height, width, channels)
DECODING, PIXELS = 3, 1
"""Levels of 255 by which decoders of JPEG (libjpeg-turbo, mozjpeg, those of browsers) and resizers that round
otherwise were seen to differ."""


@dataclass(frozen=True)
class Level:
    """The comparison of this machine with the exporting one at one step of the way."""

    name: str
    """decoding, pixels, logits, inside or answers."""
    same: int
    """Images that are the same, within what is allowed."""
    count: int
    """Images that were compared."""
    difference: float
    """The largest difference: of 255 for decoding and pixels, of logits, of answers their number."""
    allowed: float
    """The largest difference that counts as the same; answers may also differ where two logits tie."""

    @property
    def passed(self) -> bool:
        """Whether all images are the same."""
        return self.same == self.count

    def __str__(self) -> str:
        units = " of 255" if self.name in ("decoding", "pixels") else ""
        return (
            f"{self.same} of {self.count} as when exported, largest difference {self.difference:.3g}{units}, "
            f"allowed {self.allowed:.3g}"
        )


def decode(path: Path, rule: Mapping[str, Any]) -> Pixels:
    """Decode an image file to (height, width, channels), by the part `decode` of a model's preprocessing."""
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False), np.uint8)
    image: Image.Image = Image.open(path)
    channels = rule["channels"]
    sides = [scale for scale in (8, 4, 2) if min(image.size) >= scale * (rule["jpeg_side"] or math.inf)]
    if image.format == "JPEG" and sides:
        image.draft(None, (max(1, image.width // sides[0]), max(1, image.height // sides[0])))
    if rule["apply_exif"]:
        image = ImageOps.exif_transpose(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if channels != 4:
            under = Image.new("RGBA", image.size, (*rule["background"], 255))
            image = Image.alpha_composite(under, image)
    if channels != 4:
        image = image.convert("RGB")
    pixels = np.asarray(image.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels]))
    return pixels.reshape(*pixels.shape[:2], channels)


def preprocess(image: Pixels, rule: Mapping[str, Any]) -> Pixels:
    """Bring an image to the model's size, by its preprocessing."""
    (height, width, channels), (rows, columns) = image.shape, rule["image_size"]
    way, box = rule["resize"], (0.0, 0.0, float(height), float(width))
    if way == "stretch":
        return resize(image, (rows, columns), box, rule)
    sides = [side / rule["crop_fraction"] for side in (rows, columns)]
    down, across = map(round, sides) if way == "crop" else (max(math.floor(side), 1) for side in sides)
    if way == "none":
        down, across = height, width
    elif way == "crop":
        scale = max(down / height, across / width)
        down, across = round(height * scale), round(width * scale)
    elif way == "shortest" and down == across:
        long = int(down * max(height, width) / min(height, width))
        down, across = (long, down) if width <= height else (down, long)
    elif way != "squash":
        ratio = (max if way == "longest" else min)(height / down, width / across)
        down, across = max(round(height / ratio), 1), max(round(width / ratio), 1)

    def offset(spare: int) -> int:
        if way == "crop" or rule["crop_offset"] == "down":
            return spare // 2
        return round(spare / 2) if spare >= 0 else -(-spare // 2)

    top, left = offset(down - rows), offset(across - columns)
    if way == "crop":  # Pillow rounds a part that is resized otherwise than the whole that is cut
        y, x = height / down, width / across
        box = (top * y, left * x, min((top + rows) * y, height), min((left + columns) * x, width))
        return resize(image, (rows, columns), box, rule)
    border = Image.new("RGB", (1, 1), tuple(rule["border"]))
    colour = (*rule["border"], 0)[:channels] if channels in (3, 4) else border.convert("L").getpixel((0, 0))
    out = np.full((rows, columns, channels), colour, np.uint8)
    y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + rows, down), min(left + columns, across)
    part = resize(image, (down, across), box, rule)[y0:y1, x0:x1]
    out[y0 - top : y1 - top, x0 - left : x1 - left] = part
    return out


def resize(
    image: Pixels, size: tuple[int, int], box: tuple[float, float, float, float], rule: Mapping[str, Any]
) -> Pixels:
    """Resize the box (top, left, bottom, right) of an image to size (height, width)."""
    top, left, bottom, right = box
    if rule["antialias"] or (bottom - top <= size[0] and right - left <= size[1]):
        kind = Image.Resampling[rule["interpolation"].upper()]
        bands = [Image.fromarray(image[:, :, band]) for band in range(image.shape[2])]
        made = [band.resize((size[1], size[0]), kind, (left, top, right, bottom)) for band in bands]
        return np.stack([np.asarray(band) for band in made], axis=2)

    def between(start: float, stop: float, count: int, last: int) -> tuple[Any, Any, Any]:
        centres = np.clip(start + (np.arange(count) + 0.5) * ((stop - start) / count) - 0.5, 0, last)
        before = centres.astype(np.int64)
        return before, np.minimum(before + 1, last), (centres - before).astype(np.float32)

    rows, below, down = between(top, bottom, size[0], image.shape[0] - 1)
    columns, beside, across = between(left, right, size[1], image.shape[1] - 1)
    pixels, down, across = image.astype(np.float32), down[:, None, None], across[:, None]
    lines = pixels[rows] + (pixels[below] - pixels[rows]) * down
    values = lines[:, columns] + (lines[:, beside] - lines[:, columns]) * across
    return np.asarray((values + 0.5).astype(np.uint8))


def typicality(scores: NDArray[Any], own: Sequence[float]) -> NDArray[np.float64]:
    """Give the fraction of images of the model's own kind that are at least as strange, `(N,)`."""
    # Scores within a thousandth of a standard deviation count as equal.
    stranger = len(own) - np.searchsorted(np.asarray(own), scores - 1e-3, side="left")
    return np.asarray((1 + stranger) / (1 + len(own)), np.float64)


def answers_of(logits: NDArray[Any], several_labels: bool) -> NDArray[Any]:
    """Give the best class of each image, `(N,)`, or whether each of several labels is named, `(N, K)`."""
    return logits >= 0 if several_labels else logits.argmax(1)


def apart(first: NDArray[Any] | None, second: NDArray[Any]) -> float:
    """Give the largest difference of two arrays; infinity where shapes differ, or a number is not finite."""
    if first is None or first.shape != second.shape:
        return math.inf
    far = float(np.abs(first.astype(np.float64) - second).max(initial=0))
    return far if math.isfinite(far) else math.inf


def compare(
    golden: Mapping[str, NDArray[Any]],
    files: Sequence[Path],
    classes: int,
    read: Callable[[Path], Pixels | None],
    fit: Callable[[Pixels], Pixels],
    compute: Callable[[Pixels], NDArray[np.float32]],
    refuse: Callable[[NDArray[np.float32]], NDArray[np.bool_]],
) -> tuple[Level, ...]:
    """Go the way from encoded files to answers, and compare each step with the exporting machine.

    The first three levels each begin with what the golden set holds of the one before, so that a fault shows
    at its own level; the last one goes the whole way.

    Args:
        golden: the arrays of golden.npz.
        files: the encoded images.
        classes: K, the number of the model's classes.
        read, fit: decode a file, which may fail, and bring it to the model's size.
        compute: from images `(N, C, H, W)` to logits `(N, K)`, with a score of novelty behind them if any.
        refuse: from these to whether an image is none of the classes, `(N,)`.
    """

    def level(name: str, differences: Sequence[float], allowed: float) -> Level:
        same = sum(each <= allowed for each in differences)
        return Level(name, same, len(differences), max(differences), allowed)

    def outputs(images: Iterable[Pixels]) -> NDArray[np.float32]:
        return compute(np.ascontiguousarray(np.stack([*images]).transpose(0, 3, 1, 2)))

    own, decoded = [golden[f"decoded_{file.stem}"] for file in files], [read(file) for file in files]
    logits, allowed, tie = golden["logits"][:, :classes], float(golden["allowed"]), float(golden["tie"])
    levels = [level("decoding", [*map(apart, decoded, own)], DECODING)]
    levels.append(level("pixels", [*map(apart, map(fit, own), golden["pixels"])], PIXELS))
    levels.append(level("logits", [*map(apart, outputs(golden["pixels"])[:, :classes], logits)], allowed))
    if "inside" in golden:  # the graph resizes images itself
        alone = [outputs([image])[0, :classes] for image in own]
        levels.append(level("inside", [*map(apart, alone, golden["inside"])], tie))
    readable, same = [number for number, image in enumerate(decoded) if image is not None], 0
    if readable:
        made = outputs([fit(image) for image in decoded if image is not None])
        expected, logits = golden["answers"][readable], logits[readable]
        given = answers_of(made[:, :classes], expected.ndim == 2)
        if expected.ndim == 2:
            alike = ((given == expected) | (np.abs(logits) <= tie)).all(1)
        else:
            rows = np.arange(len(readable))
            alike = logits[rows, expected] - logits[rows, given] <= tie
        if "refused" in golden:
            alike &= refuse(made) == golden["refused"][readable]
        same = int(alike.sum())
    return (*levels, Level("answers", same, len(files), len(files) - same, 0))


def open_graph(folder: Path, precision: str) -> tuple[str, Callable[[Pixels], NDArray[np.float32]]]:
    """Return the name of the engine that is installed, and a function that computes the folder's graph."""
    path = next(folder / name for name in ("graph.onnx", "graph.xml") if (folder / name).exists())
    if path.suffix == ".onnx" and find_spec("onnxruntime"):
        runtime = import_module("onnxruntime")
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        name = f"onnxruntime {runtime.__version__}"
        return name, lambda images: np.column_stack(session.run(None, {"images": images}))
    openvino = import_module("openvino")
    # A graph of OpenVINO in bfloat16 or int8 takes what this processor has.
    exact = precision == "float32" or path.suffix == ".onnx"
    settings: dict[str, Any] = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    settings |= {"INFERENCE_PRECISION_HINT": "f32"} if exact else {}
    graph = openvino.Core().compile_model(str(path), "CPU", settings)
    name = f"openvino {openvino.__version__.partition('-')[0]}"
    return name, lambda images: np.column_stack([*graph([images]).values()])


def main(photos: Sequence[str]) -> int:
    """Check the bundle that this file lies in, or name what is in photos; return the exit code."""
    folder = Path(__file__).resolve().parent
    described = json.loads((folder / "engine.json").read_text(encoding="utf-8"))
    for name, checksum in described["files"].items():
        path = folder / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != checksum["sha256"]:
            print(f"{path} is missing or is not the file that was exported: copy the whole folder again.")
            return 1
    model = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    with np.load(folder / "golden.npz", allow_pickle=False) as arrays:
        golden = dict(arrays)
    rule, classes = described["preprocessing"], model["architecture"]["num_classes"]
    own = (model["refusal"] or {"scores": []})["scores"]
    engine, compute = open_graph(folder, described["precision"])

    def refuse(outputs: NDArray[np.float32]) -> NDArray[np.bool_]:
        # Of the model's own images 2 % are refused, or as few as so many scores can promise.
        share = max(0.02, 1 / (len(own) + 1))
        return np.asarray(typicality(outputs[:, -1], own) <= share if own else np.zeros(len(outputs), bool))

    def name_classes(photo: Path) -> str:
        outputs = compute(preprocess(decode(photo, rule["decode"]), rule).transpose(2, 0, 1)[None])
        logits = outputs[0, :classes].astype(np.float64)
        if (model["task"] or {"loss": "softmax"})["loss"] == "sigmoid":
            shares = 1 / (1 + np.exp(-logits))
        else:
            shares = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        names = model["class_names"] or [f"class {number}" for number in range(classes)]
        best = [f"{names[i]} {shares[i]:.1%}" for i in (-shares).argsort(kind="stable")[:5]]
        return "  ".join([*(["none of these, though nearest to"] if refuse(outputs)[0] else []), *best])

    if photos:
        unread = 0
        for photo in photos:
            try:
                print(f"{photo}  {name_classes(Path(photo))}")
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                print(f"{photo}  cannot be read as an image: {error}")
                unread = 1
        return unread
    files = sorted(folder / name for name in described["files"] if name.startswith("golden/"))
    steps = (lambda path: decode(path, rule["decode"]), lambda image: preprocess(image, rule))
    levels = compare(golden, files, classes, *steps, compute, refuse)
    for level in levels:
        print(f"{level.name:8}  {level}")
    wrong = [level.name for level in levels if not level.passed]
    said = f"departs from the exporting machine at {wrong[0]}" if wrong else "answers as when exported"
    print(f"This machine ({engine}, Pillow {version('pillow')}) {said}.")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
