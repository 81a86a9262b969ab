"""Saving a checkpoint in any format that can store the model; what the format loses is returned."""

import logging
from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.weights.format_names import Format
from vitkit.weights.table import find_format

_log = logging.getLogger("vitkit")


def save_model(model: ImageModel, path: str | Path, format: Format = "vitkit") -> Path:
    """Write a model's weights; log as a warning what the format does not record.

    Args:
        model: what to save, with its `card` (class names, preprocessing, origin) where the format has room.
        path: a folder for "vitkit", "timm" and "huggingface"; a file for "official" and "big_vision" (`.npz`
            is added) and "torchvision" (`.pth`). Folders on the way are made, what is there is replaced.
        format: its name; docs/what-commands-write.md has a table of the formats.

    Returns:
        The path written.

    Raises:
        VitkitError: the format cannot store such a model, or its card names another number of classes.
    """
    written, notes = save(model, path, format)
    for note in notes:
        _log.warning("%s: %s", written, note)
    return written


def save(model: ImageModel, path: str | Path, format: Format = "vitkit") -> tuple[Path, list[str]]:
    """Write a model's weights; return the path written, and phrases of what the format does not record.

    Arguments and errors as in `save_model`.
    """
    path = Path(path)
    chosen = find_format(format)
    if lacking := chosen.unsupported(model.config):
        raise VitkitError(
            f"The {format} format has no place for {'; '.join(lacking)}. "
            "Choose another, or vitkit's own, which keeps everything."
        )
    names = len(model.card.class_names)
    if names and names != model.config.num_classes:
        raise VitkitError(
            f"model.card has {names} class names for a model of {model.config.num_classes} classes: mend it."
        )
    lost = chosen.lost_numerics(model.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    notes = [f"the {format} format cannot say: {'; '.join(lost)}"] if lost else []
    return chosen.write(model, path, notes), notes
