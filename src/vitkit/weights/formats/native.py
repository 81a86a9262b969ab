"""vitkit's own format: `model.safetensors` next to `model.json`.

The JSON holds architecture, class names, preprocessing, origin, versions and the checksum of the weights; the
two files alone are enough to predict anywhere.
"""

from pathlib import Path

from vitkit.config import from_json, to_json, write
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
    data = read_json_object(description)
    config, card = read_description(data, description)
    checksum = None
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
    tensors = model.state_dict()
    if model.novelty is not None:
        tensors |= {f"{NOVELTY}{name}": tensor for name, tensor in model.novelty.tensors().items()}
    weights = write_hashed(folder / "model.safetensors", safetensors_chunks(tensors))
    write(folder / "model.json", {**describe(model), "weights": to_json(weights)})
    return folder


CHECKPOINT_FORMAT = table.CheckpointFormat(
    "vitkit", recognises, read, dict.fromkeys(FAMILIES, table.Holding(save_native))
)
