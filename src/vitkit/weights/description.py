"""The description of a model by vitkit itself: the contents of `model.json`, and a part of `engine.json`.

It needs no torch: what predicts from an exported folder reads it too.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from vitkit._version import __version__
from vitkit.config import describe_value, from_json, to_json
from vitkit.data.config import Augmentation, Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.zoo import FAMILIES, ModelConfig
from vitkit.weights.model_card import Described, ModelCard, Task, TrainingData, card_of, to_give_away

FORMAT = "vitkit-model"
FORMAT_VERSION = 2
"""Version 1 had preprocessing and augmentation as objects that nothing checked, empty where they were absent,
and the loss and the data of the training in the origin."""


def describe(model: Described) -> dict[str, Any]:
    """Return the contents of `model.json`, but for the checksum of the weights."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "vitkit_version": __version__,
        "family": model.config.family,
        "architecture": to_json(model.config),
        **to_json(to_give_away(card_of(model))),
    }


def read_description(data: Mapping[str, Any], path: Path) -> tuple[ModelConfig, ModelCard]:
    """Read architecture and card from the contents of the `model.json` at `path`.

    Raises:
        VitkitError: it is of another format, or from a newer vitkit.
    """
    if data.get("format") != FORMAT:
        raise VitkitError(f"{path} is not a description of a vitkit model (its 'format' is not '{FORMAT}').")
    version = data.get("format_version", 0)
    if not isinstance(version, int):
        raise VitkitError(f"{path}: format_version: expected a number, found {version!r}.")
    if version > FORMAT_VERSION:
        raise VitkitError(
            f"{path} was written by vitkit {data.get('vitkit_version')}, whose format is newer than this "
            f"vitkit ({__version__}) reads: upgrade with pip install -U vitkit."
        )
    family = data.get("family", "ViT")
    if not isinstance(family, str) or family not in FAMILIES:
        raise VitkitError(f"{path}: family: expected one of {', '.join(FAMILIES)}, found {family!r}.")
    architecture: ModelConfig = from_json(
        FAMILIES[family], data.get("architecture", {}), f"{path}: architecture"
    )
    card = _read_card(data, version, architecture, str(path))
    if card.class_names and len(card.class_names) != architecture.num_classes:
        raise VitkitError(
            f"{path}: {len(card.class_names)} class names for a model of {architecture.num_classes} classes."
        )
    return architecture, card


T = TypeVar("T")


def _read_card(data: Mapping[str, Any], version: int, config: ModelConfig, where: str) -> ModelCard:
    """Read the card from a description of version 1 or 2."""
    card = {key: value for key, value in data.items() if key in ModelCard.__dataclass_fields__}
    if version < 2:
        card = _from_version_1(card, config, where)
    parts: dict[str, Any] = {
        "preprocessing": _read_part(
            Preprocessing, card.pop("preprocessing", None), f"{where}: preprocessing"
        ),
        "augmentation": _read_part(Augmentation, card.pop("augmentation", None), f"{where}: augmentation"),
        "data": _read_part(TrainingData, card.pop("data", None), f"{where}: data"),
    }
    return replace(from_json(ModelCard, card, where), **parts)


def _read_part(cls: type[T], saved: Any, where: str) -> T | None:
    """Read a part of the card that may be absent."""
    return None if saved is None else from_json(cls, saved, where)


def _from_version_1(card: dict[str, Any], config: ModelConfig, where: str) -> dict[str, Any]:
    """Turn a card of version 1 into a card of version 2."""
    preprocessing = card.get("preprocessing") or None
    if isinstance(preprocessing, Mapping):  # the size could be left out: the architecture has it too
        preprocessing = {"image_size": list(config.image_size), **preprocessing}
    card = card | {"preprocessing": preprocessing, "augmentation": card.get("augmentation") or None}
    origin = card.get("origin")
    if not isinstance(origin, Mapping):
        return card
    if "loss" in origin:
        loss = origin["loss"]
        if loss not in ("softmax", "sigmoid"):
            raise VitkitError(
                f"{where}: origin: loss: expected 'softmax' or 'sigmoid', found {describe_value(loss)}. "
                "Put the original file back, or correct the entry."
            )
        card["task"] = to_json(Task(loss=loss))
    record = origin.get("data") or None
    if isinstance(record, Mapping):
        names = {field.name for field in fields(TrainingData)}
        record = {"name": "", **{key: value for key, value in record.items() if key in names}}
    card["data"] = record
    card["origin"] = {key: value for key, value in origin.items() if key not in ("loss", "data")}
    return card
