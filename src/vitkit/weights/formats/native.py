"""vitkit's own format: `model.safetensors` next to `model.json`.

The JSON holds architecture, class names, preprocessing, origin, versions and the checksum of the weights; the
two files alone are enough to predict anywhere.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from vitkit._version import __version__
from vitkit.config import describe_value, from_json, to_json
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.durable import replace_file, replace_json
from vitkit.errors import VitkitError
from vitkit.models.build import FAMILIES
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.weights.card import ModelCard, Task, TrainingData, card_of, to_give_away
from vitkit.weights.files.checksum import HashingWriter, read_record, verify
from vitkit.weights.files.safetensors import safetensors_chunks
from vitkit.weights.files.source import Source
from vitkit.weights.table import CheckpointFormat, Hints, Holding, Translation, current_name, renamed

FORMAT = "vitkit-model"
FORMAT_VERSION = 2
"""Version 1 kept preprocessing and augmentation as objects that nothing checked, empty where there were none,
and the loss and the data of the training in the origin."""


def recognises(source: Source) -> bool:
    """Whether a file is a `model.safetensors` next to a `model.json`, or its tensors have vitkit's names.

    The second is a file that lacks its `model.json`: `read` says so.
    """
    ours = {name for family in FAMILIES.values() for name in family.config.first_filters}
    described = "model.json" in source.settings and source.path.name == "model.safetensors"
    return described or bool(ours & source.shapes.keys())


def read(source: Source, hints: Hints) -> Translation:
    """Read the model that `model.json` describes; the tensors are taken as they are.

    Raises:
        VitkitError: the file is absent, of another format, or from a newer vitkit; or it was written for
            another file of weights than this one.
    """
    described = source.path.with_name("model.json")
    data = source.settings.get("model.json")
    if data is None:
        raise VitkitError(
            f"No model.json beside the weights in {described.parent}: it holds architecture and class names."
        )
    config, card = read_description(data, described)
    checksum = None
    if "weights" not in data:
        source.notes.append(
            "its model.json holds no checksum of the weights, as those written before vitkit recorded one: "
            "damage would not be noticed"
        )
    elif source.path.suffix == ".safetensors":
        checksum = read_record(data["weights"], f"{described}: weights")
        verify(source.path, checksum)
    else:
        source.notes.append(
            "model.json holds the checksum of a .safetensors file, not of this one: not checked"
        )
    rows = [renamed(current_name(key), key) for key in source.shapes]
    return Translation(config, rows, card, checksum=checksum, as_stored=True)


def save_native(model: ImageModel, folder: Path, notes: list[str]) -> Path:
    """Write `model.safetensors` and `model.json` into `folder`, each at one instant.

    The weights are first: between the two instants their checksum is not that of an older `model.json`, and
    loading says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hashing = HashingWriter()
    replace_file(folder / "model.safetensors", hashing.passing(safetensors_chunks(model.state_dict())))
    replace_json(folder / "model.json", {**describe(model), "weights": hashing.record()})
    return folder


CHECKPOINT_FORMAT = CheckpointFormat(
    "vitkit", recognises, read, dict.fromkeys(FAMILIES, Holding(save_native))
)


def describe(model: ImageModel) -> dict[str, Any]:
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
    """Architecture and card from what the `model.json` at `path` holds.

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
        FAMILIES[family].config, data.get("architecture", {}), f"{path}: architecture"
    )
    known = _read_card(data, version, architecture, str(path))
    if known.class_names and len(known.class_names) != architecture.num_classes:
        raise VitkitError(
            f"{path}: {len(known.class_names)} class names for a model of {architecture.num_classes} classes."
        )
    return architecture, known


T = TypeVar("T")


def _read_card(data: Mapping[str, Any], version: int, config: ModelConfig, where: str) -> ModelCard:
    card = {key: value for key, value in data.items() if key in ModelCard.__dataclass_fields__}
    if version < 2:
        card = _from_version_1(card, config, where)
    parts: dict[str, Any] = {
        "preprocessing": _part(Preprocessing, card.pop("preprocessing", None), f"{where}: preprocessing"),
        "augmentation": _part(Augmentation, card.pop("augmentation", None), f"{where}: augmentation"),
        "data": _part(TrainingData, card.pop("data", None), f"{where}: data"),
    }
    return replace(from_json(ModelCard, card, where), **parts)


def _part(cls: type[T], saved: Any, where: str) -> T | None:
    """Read a part of the card that may be absent."""
    return None if saved is None else from_json(cls, saved, where)


def _from_version_1(card: dict[str, Any], config: ModelConfig, where: str) -> dict[str, Any]:
    """Turn the card of a file of version 1 into that of version 2."""
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
        asked = {one.name for one in fields(TrainingData)}
        record = {"name": "", **{key: value for key, value in record.items() if key in asked}}
    card["data"] = record
    card["origin"] = {key: value for key, value in origin.items() if key not in ("loss", "data")}
    return card
