"""vitkit's own format: `model.safetensors` next to `model.json`.

The JSON holds architecture, class names, preprocessing, origin, versions and the checksum of the weights; the
two files alone are enough to predict anywhere.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitkit.config import from_json, to_json, write
from vitkit.durable import remove_leftovers, replace_file, sync_folder
from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import FAMILIES
from vitkit.weights import table
from vitkit.weights.files.checksum import Checksum, verify, write_hashed
from vitkit.weights.files.source import Source, read_json_object, safetensors_chunks
from vitkit.weights.model_card import NOVELTY, describe, read_description


def recognises(source: Source) -> bool:
    """Whether a file is a `model.safetensors` next to a `model.json`, or its tensors have vitkit's names.

    A file with such tensors and no `model.json` is refused by `read`, which says what is missing.
    """
    ours = {name for family in FAMILIES.values() for name in family.first_filters}
    described = source.path.name == "model.safetensors" and source.path.with_name("model.json").exists()
    return described or bool(ours & source.shapes.keys())


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the model that `model.json` describes; the tensors are taken as they are.

    Raises:
        VitkitError: the file is absent, of another format, or from a newer vitkit; or it was written for
            another file of weights than this one.
    """
    if not (description := source.path.with_name("model.json")).exists():
        raise VitkitError(
            f"No model.json beside the weights in {description.parent}: it holds architecture and class "
            "names."
        )
    data, checksum = read_json_object(description), None
    following = data.get(NEXT)
    if isinstance(following, dict) and not _describes(data, source.path):
        data = following  # a program was killed while it replaced the model
    config, card = read_description(data, description)
    if source.path.suffix == ".safetensors":
        checksum = from_json(Checksum, data.get("weights", {}), f"{description}: weights")
        verify(source.path, checksum)
    else:
        source.notes.append(
            "model.json holds the checksum of a .safetensors file, not of this one: not checked"
        )
    rows = [table.Row(key, (key,)) for key in source.shapes]
    return table.Translation(config, rows, card, checksum=checksum, as_stored=True)


def save_native(model: ImageModel, folder: Path, notes: list[str]) -> Path:
    """Write `model.safetensors` and `model.json` into `folder`, each at one instant.

    The weights are first: between the two instants their checksum is not in an older `model.json`, and
    loading says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.json", _write_weights(model, folder / "model.safetensors"))
    return folder


def _write_weights(model: ImageModel, path: Path) -> dict[str, Any]:
    """Write a model's parameters and, by names of their own, what its `Novelty` is made of; describe both."""
    novelty = {} if model.novelty is None else model.novelty.tensors()
    tensors = model.state_dict() | {f"{NOVELTY}{name}": tensor for name, tensor in novelty.items()}
    return {**describe(model), "weights": to_json(write_hashed(path, safetensors_chunks(tensors)))}


NEXT = "next"
"""The key of `model.json` under which the description of the weights that come next stands, while they are
put in the place of the old ones."""


def replace_native(
    model: ImageModel, folder: Path, files: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Replace the model in a folder, and files that belong to it: after a kill at any moment the old model is
    there or the new one, whole.

    Two files cannot be replaced at one instant. So `model.json` describes the old weights and the next ones
    until the weights are replaced, which is the instant of the change. The other files are written beside the
    old ones before, and take their places after it.

    Args:
        model: with its card.
        folder: a folder of `save_native`, in which nobody else writes now.
        files: the contents of the other files, by name.
    """
    settle(folder)
    description, weights = folder / "model.json", folder / "model.safetensors"
    for name, chunks in files.items():
        replace_file(waiting(folder / name), chunks)
    described = _write_weights(model, waiting(weights))
    write(description, {**read_json_object(description), NEXT: described})
    waiting(weights).replace(weights)
    sync_folder(folder)
    settle(folder)


def settle(folder: Path) -> None:
    """Bring a replacement of a model to its end where the weights are the new ones, or remove what was
    prepared for it; a folder without one stays as it is.

    Raises:
        VitkitError: neither description was written for the weights.
        OSError: the disk refused; the same call again goes on.
    """
    description, weights = folder / "model.json", folder / "model.safetensors"
    data = read_json_object(description)
    following = data.pop(NEXT, None)
    is_new = isinstance(following, dict) and _describes(following, weights)
    if following is not None and not is_new:
        verify(weights, from_json(Checksum, data.get("weights", {}), f"{description}: weights"))
    for path in folder.glob(waiting(folder / "*").name):
        if is_new:
            path.replace(path.with_name(path.name[1:].removesuffix(".next")))
        else:
            path.unlink()
    if following is not None:
        sync_folder(folder)
        write(description, following if is_new else data)
    remove_leftovers(folder)


def waiting(path: Path) -> Path:
    """Return the place where the next contents of a file wait."""
    return path.with_name(f".{path.name}.next")


def _describes(data: Mapping[str, Any], weights: Path) -> bool:
    """Whether a description was written for a file of weights.

    Raises:
        OSError: the file cannot be read, which says nothing about it.
    """
    try:
        verify(weights, from_json(Checksum, data["weights"], "weights"))
    except (VitkitError, KeyError):
        return False
    return True


CHECKPOINT_FORMAT = table.CheckpointFormat(
    "vitkit", recognises, read, dict.fromkeys(FAMILIES, table.Holding(save_native))
)
