"""Converting a checkpoint: it is written in another library's format, read back and compared.

Reading back shows that nothing was lost on the way; vitkit's mistakes in reading the source would be in both.
The evidence that vitkit and another library agree is `against`, which runs that library's own model.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitkit.config import difference, to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.jobs.options import ConvertOptions, from_options
from vitkit.listener import SILENT, Listener
from vitkit.models.image_model import ImageModel
from vitkit.runs.destination import beside, refuse_taken
from vitkit.weights import Format, Loaded, LoadOptions, load, lost_numerics, save
from vitkit.weights.format_names import ENDINGS, Library
from vitkit.weights.formats.recognise import find_format
from vitkit.weights.model_card import changed_pixels, preprocessing_of
from vitkit.weights.peers import library_logits

TOLERANCE = 5e-5
"""Largest difference allowed, absolute for values up to 1 and relative above: the rounding of float32."""
LIBRARY_TOLERANCE = 1e-4
"""The same between vitkit and another library, which adds numbers in another order."""
IMAGES = 8
"""Images that the two models are compared on."""


@dataclass(frozen=True)
class Parity:
    """The difference between two models on the same images."""

    logits: float | None
    """Largest absolute difference of the logits; None where they were not compared."""
    features: float | None
    """Largest absolute difference of the features; None where they were not compared."""
    logits_scale: float
    """Largest absolute logit."""
    features_scale: float
    """Largest absolute feature."""
    agreement: float | None
    """Fraction of the images with the same most probable class; None without a head or with one of zeros."""
    images: int
    """Number of images compared."""

    def within(self, tolerance: float) -> bool:
        """Whether no difference is above `tolerance`: absolute for values up to 1, relative above."""
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
        parts = [
            f"{name} (up to {scale:.2g}) differ by at most {difference:.1e}"
            for name, difference, scale in (
                ("logits", self.logits, self.logits_scale),
                ("features", self.features, self.features_scale),
            )
            if difference is not None
        ]
        if self.agreement is not None:
            parts.append(f"top-1 agreement {self.agreement:.0%}")
        return f"{', '.join(parts)}, on {self.images} images"


@dataclass(frozen=True)
class Converted:
    """The result of a conversion."""

    path: Path
    """The file or folder written."""
    parity: Parity
    """Between vitkit's model of what was read and vitkit's model of what was written."""
    beside_library: Parity | None = None
    """Between ours and the other library's own model, where that was asked for."""
    lost: tuple[str, ...] = ()
    """The properties that the format cannot store, in words."""
    notes: tuple[str, ...] = ()
    """Sentences that a user should know about the source, as `load_model` logs them."""


def run_convert(options: ConvertOptions) -> Converted:
    """Write a checkpoint in another format, read it back and compare the two.

    Returns:
        What was written, and the parity figures.

    Raises:
        VitkitError: the format has no place for such a model, or the result is another one; nothing is left.
    """
    return convert_loaded(read_source(options), options)


convert = from_options(ConvertOptions)(run_convert)


def read_source(options: ConvertOptions) -> Loaded:
    """Read the checkpoint that is to be converted, with the head and the image size it is to have.

    Raises:
        VitkitError: as `load_model`; or the result could not be written, which is found out before reading.
    """
    _check_destination(Path(options.out), options.format)
    given = replace(
        options.load_options,
        num_classes=options.num_classes,
        head=options.head,
        interpolation=options.interpolation,
        image_mean=options.image_mean or None,
        image_std=options.image_std or None,
    )
    return load(options.source, given)


def _check_destination(out: Path, to: Format) -> None:
    """Refuse a destination that cannot be written, before the source is read."""
    refuse_taken(out)
    if find_format(to).is_folder and out.name.endswith(ENDINGS):
        raise VitkitError(f"The {to} format is a folder: give a name that does not end in {out.suffix}.")


def convert_loaded(loaded: Loaded, options: ConvertOptions) -> Converted:
    """Write a model that was read, read it back, compare, and put the result where it is to be.

    Args:
        loaded: from `read_source`.
        options: the same as there.

    Raises:
        VitkitError: as `convert`.
    """
    out, to, against = Path(options.out), options.format, options.against
    model, identity = loaded.model, loaded.identity
    if against is not None and against not in (to, identity.format):
        raise VitkitError(
            f"--against {against} runs {against}'s own model on a {against} checkpoint, and neither what is "
            f"read ({identity.format}) nor what is written ({to}) is one."
        )
    lost = lost_numerics(model.config, to)
    with beside(out) as folder:
        # What the format cannot say is measured here and returned, so the notes of both are not needed.
        written = save(model, folder / out.name, to).path
        again = load(
            written, LoadOptions(image_size=model.config.image_size, num_heads=model.config.num_heads)
        ).model
        parity = compare(model, again, options.listener)
        if not parity.is_finite:
            raise VitkitError(
                f"{identity.file} gives logits that are not finite, so nothing can be compared: its weights "
                "overflow or are damaged. Nothing was written."
            )
        if not parity.within(TOLERANCE):
            _refuse(parity, out, to, lost, options.accept_change)
        library_parity = None
        if against is not None:
            library_parity = compare_with_library(model, written if against == to else identity.file, against)
            if not library_parity.within(LIBRARY_TOLERANCE):
                raise VitkitError(
                    f"{against} computes something else than vitkit: {library_parity}. Nothing is left "
                    f"at {out}."
                )
        out = out.with_name(written.name)
        if out.exists():
            raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
        written.rename(out)
    return Converted(out, parity, library_parity, (*lost, *_lost_of_the_card(model, again)), loaded.notes)


def _lost_of_the_card(model: ImageModel, again: ImageModel) -> list[str]:
    """List in words what the model knew about itself and does not know any more."""
    losses = []
    if model.card.class_names and not again.card.class_names:
        losses.append("class names")
    if model.card.loss != again.card.loss:
        losses.append(f"the {model.card.loss} loss it was trained with (predict will use softmax)")
    before, after = preprocessing_of(model), preprocessing_of(again)
    losses += changed_pixels(before, after)
    changes = difference(to_json(before.decode), to_json(after.decode), "decode.")
    return losses + [f"preprocessing's {change}" for change in changes]


def _refuse(parity: Parity, out: Path, to: Format, lost: list[str], accept_change: bool) -> None:
    """Refuse a result that differs, unless the format is the reason and the caller accepts it.

    Raises:
        VitkitError: it is refused.
    """
    if not lost:
        raise VitkitError(
            f"What was written is not the same model: {parity}. Nothing is left at {out}; this is a "
            "fault of vitkit, please report it with the model's card (vitkit card)."
        )
    if not accept_change:
        raise VitkitError(
            f"The {to} format cannot say: {'; '.join(lost)}. Read back, the model computes something else: "
            f"{parity}. Nothing is left at {out}. Choose another format, or add --accept-change to keep it."
        )


def compare(model: ImageModel, other: ImageModel, listener: Listener = SILENT) -> Parity:
    """Run both models on the same fixed images and measure how far their logits and features are apart."""
    images = fixed_images(model)
    outputs = []
    with (
        evaluation_mode(model),
        evaluation_mode(other),
        listener.progress("comparing images", IMAGES) as progress,
    ):
        for done, image in enumerate(_singly(images), 1):
            outputs.append((model.features(image), other.features(image), model(image), other(image)))
            progress(done)
    ours, theirs, our_logits, their_logits = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    has_head = model.config.num_classes > 0
    return _parity((our_logits, their_logits) if has_head else None, (ours, theirs))


def compare_with_library(model: ImageModel, path: Path, library: Library) -> Parity:
    """Compare our logits with those that another library's own model computes from its checkpoint.

    Args:
        model: as vitkit read or wrote the checkpoint.
        path: the checkpoint, in the library's own format.
        library: which one.

    Raises:
        VitkitError: as `library_logits`, or the two give logits of different shapes.
    """
    images = model.normalize(fixed_images(model))
    theirs = library_logits(library, path, images)
    with evaluation_mode(model):
        ours = torch.cat([model(part) for part in _singly(images)])
    if ours.shape != theirs.shape:
        raise VitkitError(f"{library} gives {tuple(theirs.shape)} where vitkit gives {tuple(ours.shape)}.")
    return _parity((ours, theirs), None) if model.config.num_classes else _parity(None, (ours, theirs))


def _parity(logits: tuple[Tensor, Tensor] | None, features: tuple[Tensor, Tensor] | None) -> Parity:
    """Measure pairs of logits and features, ours first; None where they are not compared."""
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
    """Draw images that are the same every time, of every scale of structure: `(8, C, H, W)` uint8."""
    rng = np.random.default_rng(2010_11929)
    channels, (height, width) = model.config.in_channels, model.config.image_size
    images = np.zeros((IMAGES, channels, height, width))
    for i, cells in enumerate(2 ** (1 + i % 6) for i in range(IMAGES)):
        coarse = torch.from_numpy(rng.uniform(size=(1, channels, cells, cells)))
        images[i] = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].numpy()
    return torch.from_numpy((255 * images).round().astype(np.uint8))


def _singly(images: Tensor) -> list[Tensor]:
    """Cut a batch into single images: memory holds no more beside the activations of the largest models."""
    return [images[i : i + 1] for i in range(len(images))]
