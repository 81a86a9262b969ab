"""`vitkit convert`: a checkpoint in another library's layout, read back and compared.

Reading back shows that nothing was lost on the way; vitkit's mistakes in reading the source would be in both.
The evidence that vitkit and another library agree is `--against`, which runs that library's own model.
"""

import math
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import numpy as np
import torch
import tyro
from rich.markup import escape
from torch import Tensor

from vitkit.cli import console
from vitkit.cli.download import download
from vitkit.config import difference, to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import evaluating
from vitkit.jobs.against import Library, library_logits
from vitkit.jobs.card import described
from vitkit.models.image_model import ImageModel
from vitkit.models.position import Interpolation
from vitkit.weights import Format, Loaded, load, lost_numerics, save
from vitkit.weights.preprocessing import changed_pixels, preprocessing_of

IMAGES = 8
"""Images that the two models are compared on."""
TOLERANCE = 5e-5
"""Largest difference allowed, for features and logits up to 1; relative above: float32's own noise."""
FOLDERS: tuple[Format, ...] = ("vitkit", "timm", "huggingface")
"""Layouts that are folders; the others are files."""
SUFFIXES = (".npz", ".pth", ".pt", ".bin", ".safetensors")
LIBRARY_TOLERANCE = 1e-4
"""The same beside another library, which adds in another order."""


@dataclass(frozen=True)
class Parity:
    """How far two models are from each other on the same images."""

    logits: float | None
    """Largest absolute difference; None where they were not compared."""
    features: float | None
    logits_scale: float
    """Largest absolute value."""
    features_scale: float
    agreement: float | None
    """Share of the images with the same most probable class; None without classes or with a head of zeros."""
    images: int

    def within(self, tolerance: float) -> bool:
        """Whether the two agree up to float32's own noise."""
        pairs = ((self.logits, self.logits_scale), (self.features, self.features_scale))
        return all(
            difference is None or (difference <= tolerance * max(1.0, scale) and math.isfinite(difference))
            for difference, scale in pairs
        )

    @property
    def is_finite(self) -> bool:
        """Whether there were numbers to compare."""
        return math.isfinite(self.logits_scale) and math.isfinite(self.features_scale)

    def __str__(self) -> str:
        said = [
            f"{name} (up to {scale:.2g}) differ by at most {difference:.1e}"
            for name, difference, scale in (
                ("logits", self.logits, self.logits_scale),
                ("features", self.features, self.features_scale),
            )
            if difference is not None
        ]
        if self.agreement is not None:
            said.append(f"top-1 agreement {self.agreement:.0%}")
        return f"{', '.join(said)}, on {self.images} images"


@dataclass(frozen=True)
class Converted:
    """What `convert` made."""

    path: Path
    parity: Parity
    """Between vitkit's model of what was read and vitkit's model of what was written."""
    beside_library: Parity | None = None
    """Between ours and the other library's own model, where that was asked for."""
    lost: tuple[str, ...] = ()
    """What the layout has no place for."""
    notes: tuple[str, ...] = ()
    """What should be known about the source, as `load_model` logs it."""


def convert(
    source: str | Path,
    out: str | Path,
    to: Format = "vitkit",
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    head: Literal["keep", "new"] | None = None,
    num_heads: int | None = None,
    interpolation: Interpolation = "original",
    against: Library | None = None,
    accept_change: bool = False,
    image_mean: tuple[float, ...] | None = None,
    image_std: tuple[float, ...] | None = None,
) -> Converted:
    """Write a checkpoint in another layout, read it back and compare the two.

    Args:
        source: anything `load_model` reads.
        out: file or folder to write, which must not be there yet.
        to: the layout.
        num_classes, image_size, head, num_heads, interpolation, image_mean, image_std: as for `load_model`.
        against: a library whose layout is read or written here, to run its own model beside ours.
        accept_change: keep a result that differs because the layout cannot say all of the arithmetic.

    Returns:
        What was written, and the parity figures.

    Raises:
        VitkitError: the layout has no place for such a model, or the result is another one; nothing is left.
    """
    out = Path(out)
    if num_classes is not None and not 0 <= num_classes < 2**31:
        raise VitkitError(f"num_classes is 0 or more and below 2^31, found {num_classes}.")
    _check_place(out, to)
    loaded = load(
        source,
        num_classes,
        image_size,
        head=head,
        num_heads=num_heads,
        interpolation=interpolation,
        image_mean=image_mean,
        image_std=image_std,
    )
    return _convert(loaded, out, to, against, accept_change)


def _check_place(out: Path, to: Format) -> None:
    """Refuse a place that cannot be written, before the source is read."""
    if out.exists():
        raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
    if to in FOLDERS and out.suffix in SUFFIXES:
        raise VitkitError(f"The {to} layout is a folder: give a name that does not end in {out.suffix}.")
    blocking = next((parent for parent in out.parents if parent.exists() and not parent.is_dir()), None)
    if blocking is not None:
        raise VitkitError(f"{blocking} is a file, and {out} would be in it: choose another place.")


def _convert(
    loaded: Loaded, out: Path, to: Format, against: Library | None, accept_change: bool
) -> Converted:
    """Write, read back, compare, and put the result in its place."""
    model, found = loaded.model, loaded.identity
    if against is not None and against not in (to, found.format):
        raise VitkitError(
            f"--against {against} runs {against}'s own model on a {against} checkpoint, and neither what is "
            f"read ({found.format}) nor what is written ({to}) is one."
        )
    lost = lost_numerics(model.config, to)
    with _beside(out) as folder:
        # What the layout cannot say is measured here and returned, so the notes of both are not needed.
        written = save(model, folder / out.name, to).path
        again = load(written, image_size=model.config.image_size, num_heads=_heads(model)).model
        parity = compare(model, again)
        if not parity.is_finite:
            raise VitkitError(
                f"{found.file} gives logits that are not finite, so nothing can be compared: its weights "
                "overflow or are damaged. Nothing was written."
            )
        if not parity.within(TOLERANCE):
            _refuse(parity, out, to, lost, accept_change)
        beside = None
        if against is not None:
            beside = compare_with_library(model, written if against == to else found.file, against)
            if not beside.within(LIBRARY_TOLERANCE):
                raise VitkitError(
                    f"{against} computes something else than vitkit: {beside}. Nothing is left at {out}."
                )
        out = out.with_name(written.name)
        if out.exists():
            raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
        written.rename(out)
    return Converted(out, parity, beside, (*lost, *_lost_of_the_card(model, again)), loaded.notes)


def _lost_of_the_card(model: ImageModel, again: ImageModel) -> list[str]:
    """What the model knew about itself and does not know any more, in words."""
    words = []
    if model.card.class_names and not again.card.class_names:
        words.append("class names")
    if model.card.loss != again.card.loss:
        words.append(f"the {model.card.loss} loss it was trained with (predict will use softmax)")
    before, after = preprocessing_of(model), preprocessing_of(again)
    words += changed_pixels(before, after)
    changes = difference(to_json(before.decode), to_json(after.decode), "decode.")
    return words + [f"preprocessing's {change}" for change in changes]


def _refuse(parity: Parity, out: Path, to: Format, lost: list[str], accept_change: bool) -> None:
    """What differs is refused, unless the layout cannot help it and the caller knows."""
    if not lost:
        raise VitkitError(
            f"What was written is not the same model: {parity}. Nothing is left at {out}; this is a "
            "fault of vitkit, please report it with the model's card (vitkit card)."
        )
    if not accept_change:
        raise VitkitError(
            f"The {to} layout cannot say: {'; '.join(lost)}. Read back, the model computes something else: "
            f"{parity}. Nothing is left at {out}. Choose another layout, or add --accept-change to keep it."
        )


def compare(model: ImageModel, other: ImageModel) -> Parity:
    """Both models on the same fixed images."""
    images = fixed_images(model)
    with evaluating(model), evaluating(other):
        pairs = [
            (model.features(part), other.features(part), model(part), other(part)) for part in _singly(images)
        ]
    ours, theirs, our_logits, their_logits = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    has_head = model.config.num_classes > 0
    return _parity((our_logits, their_logits) if has_head else None, (ours, theirs))


def compare_with_library(model: ImageModel, path: Path, library: Library) -> Parity:
    """Our logits beside those that the other library computes from a checkpoint in its own layout."""
    images = model.normalize(fixed_images(model))
    theirs = library_logits(library, path, images)
    with evaluating(model):
        ours = torch.cat([model(part) for part in _singly(images)])
    if ours.shape != theirs.shape:
        raise VitkitError(f"{library} gives {tuple(theirs.shape)} where vitkit gives {tuple(ours.shape)}.")
    return _parity((ours, theirs), None) if model.config.num_classes else _parity(None, (ours, theirs))


def _parity(logits: tuple[Tensor, Tensor] | None, features: tuple[Tensor, Tensor] | None) -> Parity:
    agreement = None
    if logits is not None and logits[0].any():
        same = logits[0].flatten(1).argmax(1) == logits[1].flatten(1).argmax(1)
        agreement = float(same.float().mean())
    return Parity(
        logits=None if logits is None else float((logits[0] - logits[1]).abs().max()),
        features=None if features is None else float((features[0] - features[1]).abs().max()),
        logits_scale=0.0 if logits is None else float(logits[0].abs().max()),
        features_scale=0.0 if features is None else float(features[0].abs().max()),
        agreement=agreement,
        images=IMAGES,
    )


def fixed_images(model: ImageModel) -> Tensor:
    """Images that are the same every time, of every scale of structure: `(8, C, H, W)` uint8."""
    rng = np.random.default_rng(2010_11929)
    channels, (height, width) = model.config.in_channels, model.config.image_size
    images = np.zeros((IMAGES, channels, height, width))
    for i, cells in enumerate(2 ** (1 + i % 6) for i in range(IMAGES)):
        coarse = torch.from_numpy(rng.uniform(size=(1, channels, cells, cells)))
        images[i] = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].numpy()
    return torch.from_numpy((255 * images).round().astype(np.uint8))


def _singly(images: Tensor) -> list[Tensor]:
    """One image at a time: the largest models fit no more."""
    return [images[i : i + 1] for i in range(len(images))]


def _heads(model: ImageModel) -> int | None:
    heads: int | None = getattr(model.config, "num_heads", None)
    return heads


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder on the same disk as `out`, gone afterwards with all that is still in it.

    The folders on the way to `out` stay only if something was put there.
    """
    made = [parent for parent in out.parents if not parent.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # not empty: the conversion succeeded
            for parent in made:
                parent.rmdir()


def main(arguments: list[str]) -> None:
    def command(
        source: Annotated[str, tyro.conf.Positional],
        out: Annotated[str, tyro.conf.Positional],
        to: Format | None = None,
        num_classes: int | None = None,
        image_size: tuple[int, int] | None = None,
        head: Literal["keep", "new"] | None = None,
        num_heads: int | None = None,
        interpolation: Interpolation = "original",
        against: Library | None = None,
        accept_change: bool = False,
        image_mean: tuple[float, ...] = (),
        image_std: tuple[float, ...] = (),
    ) -> None:
        """Write a checkpoint in another library's layout, read it back and compare the two.

        Args:
            source: a run folder, a file or folder of any library, or an address (hf:..., https://...).
            out: file or folder to write.
            to: the layout; left out, official for a name ending in .npz, torchvision for .pth, else vitkit.
            num_classes: another number of classes: a new zero head, as the original fine-tunes.
            image_size: height and width; position embeddings are resized.
            head: keep the whole head, or replace it by a new one of zeros.
            num_heads: of the attention, where the file does not say it.
            interpolation: how position embeddings are resized: the original's bilinear rule, or bicubic.
            against: run another library's own model beside it, timm or huggingface, if it is installed.
            accept_change: keep a result that differs because the layout cannot say all of the arithmetic.
            image_mean: of pixels in 0..1, one for each channel or for all, where the file does not say it.
            image_std: the same of their standard deviation.
        """
        download(source)
        layout: Format = to or _layout(out)
        _check_place(Path(out), layout)
        loaded = load(
            source,
            num_classes,
            image_size,
            head=head,
            num_heads=num_heads,
            interpolation=interpolation,
            image_mean=image_mean or None,
            image_std=image_std or None,
        )
        found = loaded.identity
        console.out.print(f"from     {escape(str(source))}: {escape(described(found))}", soft_wrap=True)
        for reason, keys in found.left_out.items():
            console.out.print(f"left out {', '.join(keys)} ({reason})", markup=False, soft_wrap=True)
        for note in loaded.notes:
            console.out.print(f"note     {note}", markup=False, soft_wrap=True)
        result = _convert(loaded, Path(out), layout, against, accept_change)
        before = found.config.num_classes
        if head == "new" or (head is None and num_classes not in (None, before)):
            names = found.card.class_names
            known = f", {', '.join(names[:5])}{', ...' * (len(names) > 5)}," if names else ""
            console.out.print(
                f"head     new, of zeros, for {num_classes or before} classes: it says nothing until it is "
                "trained, and vitkit cannot fine-tune a loaded checkpoint yet"
                + (f"; the old one of {before} classes{known} is dropped" if before else ""),
                markup=False,
                soft_wrap=True,
            )
        console.out.print(f"to       {escape(str(result.path))} ({layout})", soft_wrap=True)
        evidence = _evidence(result, against, (layout, found.format))
        console.out.print(
            f"parity   read back by vitkit: {result.parity}; {evidence}", markup=False, soft_wrap=True
        )
        if result.lost:
            console.out.print(
                f"lost     {layout} has no place for {'; '.join(result.lost)}", markup=False, soft_wrap=True
            )
        console.out.print(f"Next: vitkit card {shlex.quote(str(result.path))}", markup=False, soft_wrap=True)

    tyro.cli(command, args=arguments, prog="vitkit convert")


def _evidence(result: Converted, against: Library | None, formats: tuple[str, str]) -> str:
    """What another library says, or how to ask one; reading back alone compares vitkit with itself."""
    if result.beside_library is not None:
        return f"{against}'s own model beside vitkit's: {result.beside_library}"
    libraries = [name for name in get_args(Library) if name in formats]
    if libraries:
        return f"this is vitkit beside itself, --against {libraries[0]} runs {libraries[0]}'s own model"
    return "this is vitkit beside itself, as --against knows no library of these layouts"


def _layout(out: str) -> Format:
    suffixes: dict[str, Format] = {".npz": "official", ".pth": "torchvision", ".pt": "torchvision"}
    layout = suffixes.get(Path(out).suffix, "vitkit")
    assert layout in get_args(Format)
    return layout
