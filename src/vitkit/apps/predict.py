"""`vitkit predict` and `vitkit.Predictor`: what is in these images?"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from PIL import Image
from rich.table import Table

from vitkit.apps import console
from vitkit.apps.folder import preprocessing_of
from vitkit.apps.machine import find_device
from vitkit.data.decode import DecodeError, decode, decode_image
from vitkit.data.folders import image_files
from vitkit.data.listing import expanded
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import evaluating
from vitkit.models.weights import load
from vitkit.models.zoo import ModelConfig

ImageLike = str | Path | bytes | Image.Image | NDArray[np.uint8]

NOT_SAID = (-1, -1)
SizeOption = Annotated[
    tuple[int, int], tyro.conf.arg(help_behavior_hint="(default: the checkpoint's; one number is a square)")
]
"""`--image-size`, whose default is `NOT_SAID`: an optional pair would take a name after it for a number."""


def said(size: tuple[int, int]) -> tuple[int, int] | None:
    """An image size as the command line gives it."""
    return None if size == NOT_SAID else size


def is_address(path: str | Path) -> bool:
    """Whether a checkpoint is fetched from somewhere: hf:org/name, https://... and so on."""
    return bool(re.match(r"hf:|[A-Za-z][\w+.-]+:/", str(path))) and not Path(path).exists()


def without_predictions(config: ModelConfig) -> str:
    """Why a model names no classes, in words that follow its name; empty if it does."""
    if not config.num_classes:
        return (
            "has no head: it gives features, not classes. vitkit cannot fine-tune a loaded checkpoint yet: "
            "take a checkpoint that has a head"
        )
    if getattr(config, "pool", None) == "none":
        return (
            "has no pooling (pool none): what it says of each token is no prediction for an image. "
            "Choose pool token, mean or map when the model is made"
        )
    return ""


@dataclass(frozen=True)
class Guess:
    """A class and how probable the model finds it."""

    name: str
    probability: float


class Predictor:
    """A model ready to name what is in an image, with the preprocessing it was trained with.

    >>> predictor = vitkit.Predictor("runs/digits")
    >>> predictor("scan.png")[0].name
    '7'

    Args:
        path: anything `load_model` reads.
        device: where it computes: "auto" (a GPU if there is one), "cpu", "cuda".
        image_size, num_heads: as for `load_model`.

    `notes` holds what the user should know about the weights, as `load_model` logs it.

    Raises:
        VitkitError: no checkpoint there, or a model that names no classes.
    """

    def __init__(
        self,
        path: str | Path,
        device: str = "auto",
        *,
        image_size: int | tuple[int, int] | None = None,
        num_heads: int | None = None,
    ) -> None:
        self.device = find_device(device)
        loaded = load(path, image_size=image_size, num_heads=num_heads)
        self.notes = loaded.notes
        self.model = loaded.model.to(self.device)
        reason = without_predictions(self.model.config)
        if reason:
            raise VitkitError(f"{path} {reason}.")
        self.preprocessing = preprocessing_of(self.model)
        count = self.model.config.num_classes
        self.class_names = self.model.card.class_names or tuple(f"class {i}" for i in range(count))

    def __call__(self, image: ImageLike, top: int = 5) -> list[Guess]:
        """The `top` most probable classes of one image, best first.

        Raises:
            DecodeError: the image cannot be read.
        """
        return self.many([image], top)[0]

    def many(self, images: Sequence[ImageLike], top: int = 5) -> list[list[Guess]]:
        """The same for several images at once."""
        pixels = np.stack([preprocess(self._pixels(image), self.preprocessing) for image in images])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.device)
        with evaluating(self.model):
            logits = self.model(batch).float()
        # A model trained to say yes or no to each class apart is asked in the same way.
        sigmoid = self.model.card.origin.get("loss") == "sigmoid"
        probabilities = logits.sigmoid() if sigmoid else logits.softmax(-1)
        values, classes = probabilities.topk(min(top, len(self.class_names)))
        return [
            [Guess(self.class_names[i], value) for i, value in zip(row_classes, row_values, strict=True)]
            for row_classes, row_values in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _pixels(self, image: ImageLike) -> NDArray[np.uint8]:
        if isinstance(image, Image.Image):
            return decode_image(image, self.preprocessing.decode)
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise VitkitError(
                    "An array is an image if it is (height, width, 3) of uint8, found "
                    f"{image.shape} of {image.dtype}."
                )
            return image
        return decode(Path(image) if isinstance(image, str) else image, self.preprocessing.decode)


def listed(sources: Iterable[str]) -> Iterator[Path]:
    """The image files that arguments name: files, all images below folders, "-" for a list on stdin.

    Raises:
        VitkitError: there is no such file or folder, or no image below it.
    """
    for source in sources:
        if source == "-":
            yield from listed(line.strip() for line in sys.stdin if line.strip())
            continue
        path = expanded(source)
        if not path.is_dir():
            yield path  # one that is not there is reported beside the unreadable ones
            continue
        files = image_files(path)
        if not files:
            raise VitkitError(f"No image below {path}.")
        yield from files


def main(arguments: list[str]) -> None:
    def command(
        model: Annotated[str, tyro.conf.Positional],
        images: Annotated[list[str], tyro.conf.Positional],
        top: int = 5,
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
        device: str = "auto",
        batch_size: int = 32,
        image_size: SizeOption = NOT_SAID,
        num_heads: int | None = None,
    ) -> None:
        """Name what is in images.

        Args:
            model: run folder, or any checkpoint that vitkit convert reads.
            images: image files, folders, or - for a list of paths on standard input.
            top: how many classes for each image.
            json_output: one line of JSON for each image.
            device: auto, cpu, cuda.
            batch_size: images at a time.
            image_size: height and width; position embeddings are resized.
            num_heads: of the attention, where the file does not say it.
        """
        if not images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        if top < 1 or batch_size < 1:
            raise VitkitError(f"top and batch_size are at least 1, found {top} and {batch_size}.")
        predictor = Predictor(model, device, image_size=said(image_size), num_heads=num_heads)
        for note in predictor.notes:
            console.err.print(f"{model}: {note}.", markup=False, soft_wrap=True)
        paths = list(listed(images))
        if not paths:
            raise VitkitError("The list of images on standard input is empty.")
        table = Table(
            "image", *(["class", "probability"] if top == 1 else [f"top {top}"]), box=None, pad_edge=False
        )
        failures = 0
        with console.counting("predicting", len(paths)) as advance:
            for start in range(0, len(paths), batch_size):
                part = paths[start : start + batch_size]
                for path, guesses, reason in _guesses(predictor, part, top):
                    failures += reason is not None
                    if json_output:
                        _print_json(path, guesses, reason)
                    else:
                        table.add_row(*_row(path, guesses, reason, top))
                advance(len(part))
        if not json_output:
            console.out.print(table)
        if failures:
            others = "; the others are above" if failures < len(paths) else ""
            raise VitkitError(f"{failures} of {len(paths)} images could not be read{others}.")

    tyro.cli(command, args=arguments, prog="vitkit predict")


def _guesses(
    predictor: Predictor, paths: Sequence[Path], top: int
) -> Iterator[tuple[Path, list[Guess], str | None]]:
    """Guesses for each path, or the reason why there are none."""
    pixels: dict[int, NDArray[np.uint8]] = {}
    reasons: dict[int, str] = {}
    for i, path in enumerate(paths):
        try:
            pixels[i] = decode(path, predictor.preprocessing.decode)
        except DecodeError as error:
            reasons[i] = str(error)
    found = dict(zip(pixels, predictor.many(list(pixels.values()), top), strict=True)) if pixels else {}
    for i, path in enumerate(paths):
        yield path, found.get(i, []), reasons.get(i)


def _print_json(path: Path, guesses: list[Guess], reason: str | None) -> None:
    line: dict[str, object] = {"image": str(path)}
    if reason is None:
        line["predictions"] = [{"class": g.name, "probability": round(g.probability, 6)} for g in guesses]
    else:
        line["error"] = reason
    print(json.dumps(line, ensure_ascii=False), flush=True)


def _row(path: Path, guesses: list[Guess], reason: str | None, top: int) -> list[str]:
    from rich.markup import escape

    if reason is not None:
        return [escape(str(path)), f"[red]{escape(reason)}[/]", *([""] if top == 1 else [])]
    if top == 1:
        return [escape(str(path)), escape(guesses[0].name), f"{guesses[0].probability:.1%}"]
    first, *rest = (f"{escape(g.name)} {g.probability:.1%}" for g in guesses)
    return [escape(str(path)), "  ".join([f"[bold]{first}[/]", *rest])]
