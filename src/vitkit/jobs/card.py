"""Describe a checkpoint: its architecture, numerics, classes and origin, without building its model."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from vitkit.config import to_json
from vitkit.jobs.options import StrPath
from vitkit.models.config.image_config import Size
from vitkit.models.config.resnet_config import BackboneConfig
from vitkit.models.config.vit_config import INTERPOLATIONS
from vitkit.models.measure import forward_flops, parameters
from vitkit.models.zoo import ModelConfig
from vitkit.result import Facts, Result, Section
from vitkit.runs.start import identify_any
from vitkit.tasks import answers
from vitkit.text import format_count, format_size
from vitkit.weights import format_names, loading, model_card

CLASSES_SHOWN = 10
"""Class names in a summary; the record has all."""


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
        flops = format_count(forward_flops(config, head=True), "FLOPs")
        classes = f"{config.num_classes:,}, without names" if config.num_classes else "no head"
        shown = ", ".join(names[:CLASSES_SHOWN]) + (", ..." if len(names) > CLASSES_SHOWN else "")
        rows = (
            ("model", [described(identity), f"{parameters(config):,} parameters, {flops} per image"]),
            ("architecture", [f"{key} {_plain(value, key)}" for key, value in _differences(config)]),
            ("numerics", numerics),
            ("preprocessing", _preprocessing(identity)),
            ("classes", [shown or classes]),
            ("origin", [_labelled(key, value) for key, value in origin.items()]),
            ("left out", [f"{', '.join(keys)} ({reason})" for reason, keys in identity.left_out.items()]),
            ("notes", list(identity.notes)),
            ("weights", size_and_hash),
        )
        return (Section("", (Facts(rows),)),)

    def following(self) -> Sequence[str]:
        """Return the commands that use such a checkpoint."""
        checkpoint = shlex.quote(self.source)
        predicts = answers(self.identity.card, self.identity.config)
        return (
            *([f"vitkit predict {checkpoint} IMAGE"] if predicts else []),
            f"vitkit inspect {checkpoint}",
            f"vitkit convert {checkpoint} OUT",
        )

    def to_json(self) -> dict[str, Any]:
        """Return the whole description as plain data."""
        identity = self.identity
        card = model_card.to_give_away(identity.card)  # as in the files, which say no more
        return {
            "file": str(identity.file),
            "dialect": identity.format,
            "parameters": parameters(identity.config),
            "architecture": to_json(identity.config),
            **to_json(card),
            "origin": card.history(),
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
    options = format_names.LoadOptions(image_size=image_size, num_heads=num_heads)
    return CheckpointCard(str(source), identify_any(source, options))


def described(identity: loading.Identity) -> str:
    """Describe a checkpoint in one line: name, size, classes, format."""
    config = identity.config
    name = identity.card.name or config.family
    classes = f"{config.num_classes:,} classes" if config.num_classes else "no head"
    return (
        f"{name} at {format_size(config.image_size)}, {classes}, "
        f"{format_count(parameters(config))} parameters ({identity.format} format)"
    )


def _differences(config: ModelConfig) -> Iterator[tuple[str, Any]]:
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
    recorded = identity.card.preprocessing
    if recorded is None:
        return [f"not known: vitkit stretches images to {format_size(identity.config.image_size)}"]
    # A training run chose every field; for a file of another library, usual values are left out.
    trained = identity.card.augmentation is not None
    fields = to_json(recorded) if trained else model_card.notable_fields(recorded)
    lines = [f"{key} {_plain(value, key)}" for key, value in fields.items()]
    return lines + [
        f"{assumption.what} not in the file: {assumption.taken}" for assumption in identity.card.assumed
    ]


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
