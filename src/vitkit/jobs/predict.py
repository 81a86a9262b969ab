"""`vitkit predict` and `vitkit.Predictor`: what is in these images?"""

import base64
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from PIL import Image
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.data.decode import DecodeError, decode, decode_image
from vitkit.data.folders import image_files
from vitkit.data.listing import expanded
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import evaluating
from vitkit.evaluation.scores import probabilities
from vitkit.jobs.machine import find_device
from vitkit.models.zoo import ModelConfig
from vitkit.text import visible
from vitkit.weights import load
from vitkit.weights.preprocessing import preprocessing_of

ImageLike = str | os.PathLike[str] | bytes | IO[bytes] | Image.Image | NDArray[np.uint8] | torch.Tensor
"""A path, the bytes of a file, a file opened for reading bytes, a Pillow image, an array (height, width, 3)
or (height, width) of uint8, or a tensor (3, height, width) of uint8."""

NOT_SAID = (-1, -1)
SizeOption = Annotated[
    tuple[int, int], tyro.conf.arg(help_behavior_hint="(default: the checkpoint's; one number is a square)")
]
"""`--image-size`, whose default is `NOT_SAID`: an optional pair would take a name after it for a number."""


def said(size: tuple[int, int]) -> tuple[int, int] | None:
    """An image size as the command line gives it."""
    return None if size == NOT_SAID else size


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
        max_pixels: larger images are refused; left out, the limit that the model was saved with.

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
        max_pixels: int | None = None,
    ) -> None:
        self.device = find_device(device)
        loaded = load(path, image_size=image_size, num_heads=num_heads)
        self.notes = loaded.notes
        self.model = loaded.model.to(self.device)
        reason = without_predictions(self.model.config)
        if reason:
            raise VitkitError(f"{path} {reason}.")
        self.preprocessing = preprocessing_of(self.model)
        if max_pixels is not None:
            rule = replace(self.preprocessing.decode, max_pixels=max_pixels)
            self.preprocessing = replace(self.preprocessing, decode=rule)
        count = self.model.config.num_classes
        self.class_names = self.model.card.class_names or tuple(f"class {i}" for i in range(count))

    def __call__(self, image: ImageLike, top: int = 5) -> list[Guess]:
        """The `top` most probable classes of one image, best first.

        Raises:
            DecodeError: the image cannot be read; the message names the file.
            VitkitError: it is no image, or the model's logits are not finite.
        """
        return self.many([image], top)[0]

    def many(self, images: Sequence[ImageLike], top: int = 5) -> list[list[Guess]]:
        """The same for several images at once: a list or tuple, or an array or tensor of four dimensions."""
        if isinstance(images, str | bytes | os.PathLike | Image.Image) or getattr(images, "ndim", 4) != 4:
            raise VitkitError("many() takes several images: give a list, of one image too.")
        if top < 1:
            raise VitkitError(f"top is at least 1, found {top}.")
        if not len(images):
            return []
        pixels = np.stack([preprocess(self._pixels(image), self.preprocessing) for image in images])
        batch = torch.from_numpy(pixels).permute(0, 3, 1, 2).to(self.device)
        with evaluating(self.model):
            logits = self.model(batch).float()
        wrong = int((~logits.isfinite().all(-1)).sum())
        if wrong:
            raise VitkitError(
                f"The model's logits are not finite (NaN or infinite) for {wrong} of {len(logits)} images, "
                "so it cannot name anything: its weights overflow or are damaged. Use another checkpoint."
            )
        shares = torch.from_numpy(probabilities(logits.cpu().numpy(), self.model.card.loss))
        values, classes = shares.topk(min(top, len(self.class_names)))
        return [
            [Guess(self.class_names[i], value) for i, value in zip(row_classes, row_values, strict=True)]
            for row_classes, row_values in zip(classes.tolist(), values.tolist(), strict=True)
        ]

    def _pixels(self, image: Any) -> NDArray[np.uint8]:
        """One image as `(height, width, 3)`, whatever it is given as."""
        rule = self.preprocessing.decode
        if isinstance(image, Image.Image):
            return decode_image(image, rule)
        if isinstance(image, torch.Tensor):
            return _from_tensor(image)
        if isinstance(image, np.ndarray):
            return _from_array(image)
        if isinstance(image, str | os.PathLike):
            text = os.fspath(image)
            refuse_address(text)
            try:
                return decode(Path(text), rule)
            except DecodeError as error:
                raise DecodeError(f"{text}: {error}") from error
        if isinstance(image, bytes | bytearray | memoryview):
            return decode(bytes(image), rule)
        if hasattr(image, "read"):
            content = image.read()
            if not isinstance(content, bytes):
                raise VitkitError("The image is a file opened as text: open it as bytes, with mode 'rb'.")
            return decode(content, rule)
        several = " (many() takes several images)" if isinstance(image, list | tuple | set) else ""
        raise VitkitError(
            "An image is a path, the bytes of a file, a file opened with mode 'rb', a Pillow image, an array "
            f"or a tensor; found {type(image).__name__}{several}."
        )


def _from_array(image: NDArray[Any]) -> NDArray[np.uint8]:
    if image.dtype == np.uint8 and image.size:
        if image.ndim == 3 and image.shape[2] == 3:
            return image
        grey = image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image
        if grey.ndim == 2:
            return np.repeat(grey[:, :, None], 3, axis=2)
    raise VitkitError(
        "An array is an image if it is (height, width, 3), or (height, width) of grey, of uint8 in 0..255; "
        f"found {image.shape} of {image.dtype}."
    )


def _from_tensor(image: torch.Tensor) -> NDArray[np.uint8]:
    if image.dtype == torch.uint8 and image.numel():
        if image.ndim == 3 and image.shape[0] in (1, 3):
            return _from_array(image.permute(1, 2, 0).cpu().numpy())
        if image.ndim == 2:
            return _from_array(image.cpu().numpy())
    raise VitkitError(
        "A tensor is an image if it is (3, height, width), or (height, width) of grey, of uint8 in 0..255; "
        f"found {tuple(image.shape)} of {str(image.dtype).removeprefix('torch.')}."
    )


def refuse_address(path: str) -> None:
    """Refuse an image by address, in words that name the address as it was given.

    Raises:
        VitkitError: it is one.
    """
    match = re.match(r"([A-Za-z][\w+.-]+):/+(?=[^/])", path)  # one slash is what pathlib leaves of two
    if match and not Path(path).exists():
        raise VitkitError(
            f"{match[1]}://{path[match.end() :]} is an address, and images are read from this machine alone: "
            "download it first, then give the file."
        )


def listed(sources: Iterable[str]) -> Iterator[Path]:
    """The image files that arguments name: files, all images below folders, "-" for a list on stdin.

    Raises:
        VitkitError: there is no such file or folder, or no image below it.
    """
    for source in sources:
        for name in _lines_of_input() if source == "-" else [source]:
            refuse_address(name)
            path = expanded(name)
            if not path.is_dir():
                yield path  # one that is not there is reported beside the unreadable ones
                continue
            files = image_files(path)
            if not files:
                raise VitkitError(f"No image below {path}.")
            yield from files


def _lines_of_input() -> Iterator[str]:
    """The lines of standard input as the names of files, which need not be UTF-8."""
    if sys.stdin is None:
        raise VitkitError("Standard input is closed, so no paths can be read from it.")
    for line in getattr(sys.stdin, "buffer", sys.stdin):
        name = os.fsdecode(line).strip()
        if name:
            yield name


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
        max_pixels: int | None = None,
    ) -> None:
        """Name what is in images.

        Args:
            model: run folder, or any checkpoint that vitkit convert reads.
            images: image files, folders, or - for a list of paths on standard input.
            top: how many classes for each image.
            json_output: one line of JSON for each image; image_base64 holds a name that is not UTF-8.
            device: auto, cpu, cuda.
            batch_size: images at a time.
            image_size: height and width; position embeddings are resized.
            num_heads: of the attention, where the file does not say it.
            max_pixels: larger images are refused; left out, the limit that the model was saved with.
        """
        if not images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        if top < 1 or batch_size < 1:
            raise VitkitError(f"top and batch_size are at least 1, found {top} and {batch_size}.")
        download(model)
        predictor = Predictor(
            model, device, image_size=said(image_size), num_heads=num_heads, max_pixels=max_pixels
        )
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
    name = os.fsencode(path)
    line: dict[str, object] = {"image": name.decode("utf-8", "backslashreplace")}
    try:
        name.decode("utf-8")
    except UnicodeDecodeError:
        line["image_base64"] = base64.b64encode(name).decode("ascii")
    if reason is None:
        line["predictions"] = [{"class": g.name, "probability": round(g.probability, 6)} for g in guesses]
    else:
        line["error"] = reason
    console.print_json(line, indent=None)


def _row(path: Path, guesses: list[Guess], reason: str | None, top: int) -> list[str]:
    name = escape(visible(str(path)))
    if reason is not None:
        return [name, f"[red]{escape(visible(reason))}[/]", *([""] if top == 1 else [])]
    if top == 1:
        return [name, escape(visible(guesses[0].name)), f"{guesses[0].probability:.1%}"]
    first, *rest = (f"{escape(visible(g.name))} {g.probability:.1%}" for g in guesses)
    return [name, "  ".join([f"[bold]{first}[/]", *rest])]
