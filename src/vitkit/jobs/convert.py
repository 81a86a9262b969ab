"""Convert a checkpoint: write it in another library's format, read it back and compare; or describe one.

Reading back shows that writing lost nothing; a mistake in reading the source would be in both models. The
option `against` runs the other library's own model, where it is installed, and compares with that. A card
describes architecture, numerics, classes and origin without building the model.
"""

import contextlib
import math
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Unpack, cast, get_args

import numpy as np
import torch
from torch import Tensor

from vitkit.config import difference, to_json
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.refusal import show_smallest_share
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.jobs.options import LoadingOptions, StrPath
from vitkit.listener import AUTOMATIC, SILENT, Listener, hushed
from vitkit.models import fast, measure, zoo
from vitkit.models.config import INTERPOLATIONS, BackboneConfig, Refusal, Size, ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.result import Facts, Result, Section
from vitkit.runs.folder import beside, refuse_taken
from vitkit.runs.start import identify_any
from vitkit.tasks import answers
from vitkit.text import format_count, format_size, join_names
from vitkit.weights import loading, model_card, table
from vitkit.weights.format_names import ENDINGS, Format, Library, LoadOptions, format_for
from vitkit.weights.published import describe_origin_licence

TOLERANCE = 5e-5
"""Largest difference allowed, absolute for values up to 1 and relative above: the rounding of float32."""
LIBRARY_TOLERANCE = 1e-4
"""The largest difference from another library, which adds numbers in another order."""
NAMES_SHOWN = 5
"""Class names of the old head that are shown."""
IMAGES = 8
"""Images of a comparison."""


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
        return all(most <= tolerance * max(1.0, scale) < math.inf for _, most, scale in self._compared())

    def _compared(self) -> list[tuple[str, float, float]]:
        """Return the name, the difference and the scale of what was compared."""
        both = (("logits", self.logits, self.logits_scale), ("features", self.features, self.features_scale))
        return [(name, most, scale) for name, most, scale in both if most is not None]

    def __str__(self) -> str:
        compared = self._compared()
        parts = [f"{name} (up to {scale:.2g}) differ by at most {most:.1e}" for name, most, scale in compared]
        if self.agreement is not None:
            parts.append(f"top-1 agreement {self.agreement:.0%}")
        return f"{', '.join(parts)}, on {self.images} images"


@dataclass(frozen=True, repr=False)
class Converted(Result):
    """The result of a conversion."""

    given: str
    """The path or the address of the source."""
    source: loading.Identity
    """The checkpoint that was read, with the head that it had."""
    path: Path
    """The file or folder written."""
    format: Format
    """The format written."""
    parity: Parity
    """The comparison of the source model with the written model, read back."""
    beside_library: Parity | None = None
    """The comparison with the other library's own model, with `against`."""
    lost: tuple[str, ...] = ()
    """The properties that the format cannot store."""
    notes: tuple[str, ...] = ()
    """Remarks on the source, as `load_model` logs them."""
    against: Library | None = None
    """The other library of `beside_library`."""
    new_classes: int | None = None
    """The classes of a new head of zeros; None where the head stays."""

    def summary(self) -> str:
        """Name what was written, and its parity."""
        return f"{self.path} ({self.format}), {self.parity}"

    def sections(self) -> Sequence[Section]:
        """Return what was read, what was written, and how they compare."""
        source, lost = self.source, f"{self.format} has no place for {'; '.join(self.lost)}"
        rows = [("from", [f"{self.given}: {described(source)}"])]
        rows += (("left out", [line]) for line in _left_out(source))
        rows += (("note", [note]) for note in self.notes)
        if self.new_classes is not None:
            names, before = source.card.class_names, source.config.num_classes
            shown = f", {join_names(names, NAMES_SHOWN)}," if names else ""
            dropped = f"; the old one of {before} classes{shown} is dropped"
            new = (
                f"new, of zeros, for {self.new_classes} classes: it says nothing until it is trained (vitkit "
                f"finetune){dropped if before else ''}"
            )
            rows.append(("head", [new]))
        # Reading back compares vitkit with itself.
        libraries = [name for name in get_args(Library) if name in (self.format, source.format)]
        evidence = "this is vitkit beside itself, as --against knows no library of these formats"
        if self.beside_library is not None:
            evidence = f"{self.against}'s own model beside vitkit's: {self.beside_library}"
        elif libraries:
            other = libraries[0]
            evidence = f"this is vitkit beside itself, --against {other} runs {other}'s own model"
        rows.append(("to", [f"{self.path} ({self.format})"]))
        rows.append(("parity", [f"read back by vitkit: {self.parity}; {evidence}"]))
        rows += [("lost", [lost])] if self.lost else []
        return (Section("", (Facts(tuple(rows)),)),)

    def following(self) -> Sequence[str]:
        """Return the command that describes what was written."""
        return (f"vitkit card {shlex.quote(str(self.path))}",)


def convert(
    source: StrPath,
    out: StrPath,
    *,
    to: Format | None = None,
    num_classes: int | None = None,
    head: Literal["keep", "new"] | None = None,
    against: Library | None = None,
    accept_change: bool = False,
    image_mean: tuple[float, ...] | None = None,
    image_std: tuple[float, ...] | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Converted:
    """Write a checkpoint in another library's format, read it back and compare the two.

    Args:
        source: a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
            https://...).
        out: file or folder to write; it must not exist yet.
        to: format to write; left out, official for a name ending in .npz, torchvision for .pth, else vitkit.
        num_classes: number of classes of a new head of zeros, which replaces the old one, as the original
            code fine-tunes.
        head: keep the whole head, or replace it by a new one of zeros.
        against: compare with the model of another library, timm or huggingface, if it is installed.
        accept_change: keep a result that differs because the format cannot store all of the model's numerics.
        image_mean: mean of pixels in 0..1, one for each channel or one for all, where the file does not
            record it.
        image_std: standard deviation of pixels in 0..1, given in the same way.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how the checkpoint is read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Returns:
        The path and the parity figures.

    Raises:
        VitkitError: the format cannot store such a model, or it differs when it is read back; nothing is
            left.
    """
    listener, out, to = hushed(listener, quiet), Path(out), to or format_for(out)
    refuse_taken(out)
    written_format = table.find_format(to)
    if written_format.is_folder and out.name.endswith(ENDINGS):
        raise VitkitError(f"The {to} format is a folder: give a name that does not end in {out.suffix}.")
    mean, std = image_mean or None, image_std or None
    given = LoadOptions(num_classes=num_classes, head=head, image_mean=mean, image_std=std, **load)
    loaded = loading.load(source, given)
    model, identity = loaded.model, loaded.identity
    if against is not None and against not in (to, identity.format):
        raise VitkitError(
            f"--against {against} runs {against}'s own model on a {against} checkpoint, and neither the "
            f"source ({identity.format}) nor the destination ({to}) is one."
        )
    lost = written_format.lost_numerics(model.config)
    with beside(out) as folder:
        # The notes of both are left out: the comparison below returns what the format cannot store.
        written, _ = loading.save(model, folder / out.name, to)
        same = LoadOptions(image_size=model.config.image_size, num_heads=model.config.num_heads)
        again = loading.load(written, same).model
        parity = compare(model, again, listener)
        if not math.isfinite(parity.logits_scale + parity.features_scale):
            raise VitkitError(
                f"{identity.file} gives logits that are not finite, so nothing can be compared: its weights "
                "overflow or are damaged. Nothing was written."
            )
        if not parity.within(TOLERANCE):
            if not lost:
                raise VitkitError(
                    f"The written model differs from the source: {parity}. Nothing is left at {out}; this is "
                    "a fault of vitkit, please report it with the model's card (vitkit card)."
                )
            if not accept_change:
                raise VitkitError(
                    f"The {to} format cannot store: {'; '.join(lost)}. Read back, the model differs: "
                    f"{parity}. Nothing is left at {out}. Choose another format, or add --accept-change to "
                    "keep it."
                )
        library_parity = None
        if against is not None:
            library_parity = compare_with_library(model, written if against == to else identity.file, against)
            if not library_parity.within(LIBRARY_TOLERANCE):
                raise VitkitError(
                    f"{against}'s logits differ from vitkit's: {library_parity}. Nothing is left at {out}."
                )
        out = out.with_name(written.name)
        refuse_taken(out)
        written.rename(out)
    lost += _lost_of_the_card(model, again)
    before = identity.config.num_classes
    is_new = head == "new" or (head is None and num_classes not in (None, before))
    return Converted(
        given=str(source),
        source=identity,
        path=out,
        format=to,
        parity=parity,
        beside_library=library_parity,
        lost=tuple(lost),
        notes=loaded.notes,
        against=against,
        new_classes=(num_classes or before) if is_new else None,
    )


def _lost_of_the_card(model: ImageModel, again: ImageModel) -> list[str]:
    """List the properties of the card that the written checkpoint lacks."""
    losses = []
    if model.card.class_names and not again.card.class_names:
        losses.append("class names")
    if model.card.loss != again.card.loss:
        losses.append(f"the {model.card.loss} loss it was trained with (predict will use softmax)")
    ours, theirs = model.card.position_interpolation, again.card.position_interpolation
    if ours != theirs and getattr(model.config, "position", "none") == "learned":
        losses.append(f"{INTERPOLATIONS[ours]} of resizing positions (read back: {INTERPOLATIONS[theirs]})")
    before, after = model_card.preprocessing_of(model), model_card.preprocessing_of(again)
    losses += model_card.changed_pixels(before, after)
    changes = difference(to_json(before.decode), to_json(after.decode), "decode.")
    return losses + [f"preprocessing's {change}" for change in changes]


def compare(model: ImageModel, other: ImageModel, listener: Listener = SILENT) -> Parity:
    """Measure the difference of two models' logits and features on the same fixed images."""
    images = fixed_images(model)
    outputs = []
    comparing = listener.progress("comparing images", IMAGES)
    with evaluation_mode(model), evaluation_mode(other), comparing as progress:
        # One at a time bounds the memory of the largest models' activations.
        for done, image in enumerate(images.chunk(IMAGES), 1):
            outputs.append((model.features(image), other.features(image), model(image), other(image)))
            progress(done)
    ours, theirs, our_logits, their_logits = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    return _parity((our_logits, their_logits) if model.config.num_classes else None, (ours, theirs))


def compare_with_library(model: ImageModel, path: Path, library: Library) -> Parity:
    """Compare our logits with the logits of another library's own model of the checkpoint.

    Args:
        model: vitkit's model of the checkpoint.
        path: the checkpoint, in the library's own format.
        library: the other library.

    Raises:
        VitkitError: as `library_logits`; or the logits differ in shape.
    """
    images = model.normalize(fixed_images(model))
    theirs = library_logits(library, path, images)
    with evaluation_mode(model):
        ours = torch.cat([model(part) for part in images.chunk(IMAGES)])
    if ours.shape != theirs.shape:
        raise VitkitError(f"{library} gives {tuple(theirs.shape)} where vitkit gives {tuple(ours.shape)}.")
    return _parity((ours, theirs), None) if model.config.num_classes else _parity(None, (ours, theirs))


def _parity(logits: tuple[Tensor, Tensor] | None, features: tuple[Tensor, Tensor] | None) -> Parity:
    """Measure pairs of logits and features, ours first; None where they are not compared."""
    agreement = None
    if logits is not None and logits[0].any():
        same = logits[0].flatten(1).argmax(1) == logits[1].flatten(1).argmax(1)
        agreement = float(same.float().mean())
    pairs = (logits, features)
    most = [None if pair is None else float((pair[0] - pair[1]).abs().max()) for pair in pairs]
    scales = [0.0 if pair is None else float(pair[0].abs().max()) for pair in pairs]
    return Parity(most[0], most[1], scales[0], scales[1], agreement, IMAGES)


def fixed_images(model: ImageModel) -> Tensor:
    """Draw the same images at every call, with structures of every scale: `(8, C, H, W)` uint8."""
    rng = np.random.default_rng(2010_11929)
    channels, (height, width) = model.config.in_channels, model.config.image_size
    images = np.zeros((IMAGES, channels, height, width))
    for i, cells in enumerate(2 ** (1 + i % 6) for i in range(IMAGES)):
        coarse = torch.from_numpy(rng.uniform(size=(1, channels, cells, cells)))
        images[i] = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0].numpy()
    return torch.from_numpy((255 * images).round().astype(np.uint8))


_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def library_logits(library: Library, path: Path, images: Tensor) -> Tensor:
    """Compute the logits of images with a library's own model.

    Args:
        library: timm or huggingface.
        path: a checkpoint in its format.
        images: `(B, C, H, W)`, normalised.

    Returns:
        Logits `(B, K)`.

    Raises:
        VitkitError: the library is not installed, or cannot load the checkpoint.
    """
    package = "transformers" if library == "huggingface" else library
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").exists():
        raise VitkitError(
            f"{package} needs a config.json beside the weights, and {folder} has none. Write them in its "
            f"format instead: --to {library} --against {library}."
        )
    try:
        module = import_library(package)
    except Exception as error:  # a broken installation raises anything
        raise VitkitError(
            f"{package} cannot be used here ({error}). Install it with: pip install {package}"
        ) from error
    try:
        if library == "timm":
            model: Any = module.create_model(f"local-dir:{folder}", pretrained=True)
        else:
            model = module.AutoModelForImageClassification.from_pretrained(str(folder))
        with torch.inference_mode():
            outputs = [model.eval()(images[i : i + 1]) for i in range(len(images))]
    except Exception as error:
        lines = str(error).strip().splitlines()[:3]
        raise VitkitError(f"{package} cannot run {path}: {' '.join(lines)}") from error
    return torch.cat([getattr(output, "logits", output) for output in outputs])


def import_library(package: str) -> Any:
    """Import a library, with a torchvision beside it that may be broken.

    torchvision's wheel registers its operators from a compiled library that does not load beside a CPU build
    of torch. timm imports torchvision when it is imported, transformers only when a model is made, so the
    operators are defined before either. Only the names of two are needed: neither is called here.
    """
    try:
        import_module("torchvision")
    except ModuleNotFoundError:
        pass  # it is not imported
    except Exception:  # installed, and broken in a way of its own
        for operator in ("nms", "qnms"):
            with contextlib.suppress(RuntimeError):  # there already
                # PyTorch keeps such a definition until the program ends.
                torch.library.define(f"torchvision::{operator}", _SCHEMA)
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]  # half imported
    return import_module(package)


@dataclass(frozen=True, repr=False)
class CheckpointCard(Result):
    """The description of a checkpoint."""

    source: str
    """The path or the address that was given."""
    identity: loading.Identity

    def summary(self) -> str:
        """Describe the checkpoint in one line."""
        return described(self.identity)

    def sections(self) -> Sequence[Section]:
        """Return the description by headings; none where the file records nothing."""
        identity, card, config = self.identity, self.identity.card, self.identity.config
        names, weights, numerics = card.class_names, identity.checksum, list(config.arithmetic)
        mean, std = model_card.by_channel(config.image_mean), model_card.by_channel(config.image_std)
        numerics.append(f"pixels: mean {mean}, std {std} (of [0, 1])")
        if getattr(config, "position", "none") not in ("none", "sincos_2d"):
            numerics.append(f"positions: resized by {INTERPOLATIONS[card.position_interpolation]}")
        size_and_hash = []
        if weights is not None:  # by which other programs can recognise the file
            size_and_hash = [f"{weights.bytes:,} bytes, when written of SHA-256", weights.sha256]
        # Without the remarks that are among the notes.
        remarks = set(identity.notes)
        origin = {
            key: value
            for key, value in model_card.to_give_away(card).history().items()
            if key != "notes" or not remarks.issuperset(value if isinstance(value, list) else [value])
        }
        flops = format_count(measure.forward_flops(config, head=True), "FLOPs")
        classes = f"{config.num_classes:,}, without names" if config.num_classes else "no head"
        rows = (
            ("model", [described(identity), f"{measure.parameters(config):,} parameters, {flops} per image"]),
            ("architecture", [f"{key} {_plain(value, key)}" for key, value in _differences(config)]),
            ("numerics", numerics),
            ("speed", list(_slow_parts(config))),
            ("preprocessing", _preprocessing(identity)),
            ("classes", [join_names(names) or classes]),
            ("refuses", [] if card.refusal is None else [_refusal(card.refusal)]),
            ("origin", [_labelled(key, value) for key, value in origin.items()]),
            ("licence", [licence] if (licence := describe_origin_licence(self.source, card)) else []),
            ("left out", list(_left_out(identity))),
            ("notes", list(identity.notes)),
            ("weights", size_and_hash),
        )
        return (Section("", (Facts(rows),)),)

    def following(self) -> Sequence[str]:
        """Return the commands that use such a checkpoint."""
        checkpoint = shlex.quote(self.source)
        predicts = answers(self.identity.card, self.identity.config)
        uses = [f"vitkit inspect {checkpoint}", f"vitkit convert {checkpoint} OUT"]
        return [f"vitkit predict {checkpoint} IMAGE", *uses] if predicts else uses

    def to_json(self) -> dict[str, Any]:
        """Return the whole description as plain data."""
        identity = self.identity
        card = model_card.to_give_away(identity.card)  # as in the files, which say no more
        return {
            "file": str(identity.file),
            "dialect": identity.format,
            "parameters": measure.parameters(identity.config),
            "architecture": to_json(identity.config),
            **to_json(card),
            "origin": card.history(),
            "licence": describe_origin_licence(self.source, identity.card) or None,
            "left_out": identity.left_out,
            "notes": list(identity.notes),
            "weights": None if identity.checksum is None else to_json(identity.checksum),
        }


def read_card(
    source: StrPath, *, image_size: Size | None = None, num_heads: int | None = None
) -> CheckpointCard:
    """Describe a checkpoint: architecture, numerics, preprocessing, class names, origin.

    Args:
        source: a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
            https://...).
        image_size: height and width in pixels, or one number for both; left out, the checkpoint's. Position
            embeddings are resized.
        num_heads: number of attention heads, where the file does not record it.

    Raises:
        VitkitError: as `load_model`.
    """
    options = LoadOptions(image_size=image_size, num_heads=num_heads)
    return CheckpointCard(str(source), identify_any(source, options))


def described(identity: loading.Identity) -> str:
    """Describe a checkpoint in one line: name, size, classes, format."""
    config = identity.config
    name = identity.card.name or config.family
    classes = f"{config.num_classes:,} classes" if config.num_classes else "no head"
    return (
        f"{name} at {format_size(config.image_size)}, {classes}, "
        f"{format_count(measure.parameters(config))} parameters ({identity.format} format)"
    )


def _slow_parts(config: zoo.ModelConfig) -> Iterator[str]:
    """Say why a ViT's blocks are not compiled on a processor, where they are not."""
    vit = cast("ViTConfig", config)  # if it has tokens
    if config.num_tokens is not None and not fast.block_can_be_compiled(vit):
        named = {name: getattr(config, name) for name in fast.COMPILED_BLOCK.lacking(config)}
        if vit.head_dim % fast.HEAD_MULTIPLE:
            named["head_dim"] = vit.head_dim
        shown = join_names([f"{name} {_plain(value, name)}" for name, value in named.items()])
        yield f"blocks are computed operation by operation, because of {shown}"


def _left_out(identity: loading.Identity) -> Iterator[str]:
    """Name the tensors that are left out, and why; of many (a tower for texts) the first and how many."""
    for reason, keys in identity.left_out.items():
        many = len(keys) > loading.NAMES_SHOWN
        shown = f", ...: {len(keys):,} tensors" if many else ""
        yield f"{', '.join(keys[: loading.NAMES_SHOWN])}{shown} ({reason})"


def _differences(config: zoo.ModelConfig) -> Iterator[tuple[str, Any]]:
    """Yield the fields of the architecture that differ from the defaults; numerics are shown elsewhere."""
    elsewhere = {"gelu", "norm_eps", "standardization_eps", "max_pool_padding", "image_mean", "image_std"}
    for field in fields(config):
        actual = getattr(config, field.name)
        if field.name in elsewhere or actual == field.default:
            continue
        shown = to_json(config)[field.name]
        if isinstance(actual, BackboneConfig):
            width = "" if actual.width_factor == 1 else f", {actual.width_factor:g} times as wide"
            layers = f"layers {_plain(actual.layers, 'layers')}{width}"
            shown = layers if actual.layers else "root block alone"
        yield field.name, shown


def _preprocessing(identity: loading.Identity) -> list[str]:
    if (recorded := identity.card.preprocessing) is None:
        return [f"not known: vitkit stretches images to {format_size(identity.config.image_size)}"]
    # A training run chose every field; of another library's file only unusual values are shown.
    usual = to_json(Preprocessing(recorded.image_size)) if identity.card.augmentation is None else {}
    always = ("image_size", "resize", "antialias")
    lines = [
        f"{key} {_plain(value, key)}"
        for key, value in to_json(recorded).items()
        if key in always or key not in usual or value != usual[key]
    ]
    return lines + [f"{missing.what} not in the file: {missing.taken}" for missing in identity.card.assumed]


def _refusal(refusal: Refusal) -> str:
    """Say by which images it is decided what is none of the classes."""
    images = f"{len(refusal.scores):,} {refusal.split} images"
    least = show_smallest_share(len(refusal.scores))
    return f"images that are none of the classes, by the scores of {images}: --refuse {least} or more"


def _labelled(key: str, value: Any) -> str:
    """Write a field as "name value", without repeating a name that begins the value."""
    return f"{key} {_plain(value, key).removeprefix(f'{key} ')}"


def _plain(value: Any, key: str = "") -> str:
    """Write a value of JSON for a person."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(_labelled(name, part) for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        join = "; " if any(isinstance(part, str | Mapping) for part in value) else ", "
        join = "x" if key.endswith("_size") else "-" if key == "layers" else join
        return join.join(_plain(part) for part in value) or "none"
    return str(value)
