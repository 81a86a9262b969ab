"""Checkpoints in, checkpoints out: the dialect is found by itself, every key is accounted for."""

import io
import logging
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor

from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.position import resize_position_embedding
from vitkit.models.vit import ViT, ViTConfig
from vitkit.models.weights.accounting import build
from vitkit.models.weights.native import read_description, read_safetensors, save_native
from vitkit.models.weights.official import official_config, read_official, to_official, to_ours

Format = Literal["vitkit", "official"]

_log = logging.getLogger("vitkit")


def load_model(
    path: str | Path, num_classes: int | None = None, image_size: int | tuple[int, int] | None = None
) -> ViT:
    """A model with the weights of a checkpoint.

    Args:
        path: a run folder or any folder with `model.safetensors` and `model.json`, such a `.safetensors`
            file, or an `.npz` of the original release.
        num_classes: left out, the head stays as it is. Another number than the file's follows the original's
            rule for fine-tuning: the tanh layer is dropped and the head is a new linear layer of zeros.
        image_size: left out, the size of the weights. Another one resizes the position embeddings.

    Raises:
        VitkitError: no checkpoint there, one of another architecture, or a damaged one.
    """
    path = Path(path)
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    config, tensors, card = _read(path, size)
    if num_classes is not None and num_classes != config.num_classes:
        config, tensors = _without_head(config, tensors, num_classes)
        card = replace(card, class_names=())
        _log.info("%s: new zero head for %d classes", path, num_classes)
    if size is not None:
        config, tensors = _at_size(config, tensors, size, path)
    model = build(config, tensors, str(path))
    model.card = card
    return model.eval()


def save_model(model: ViT, path: str | Path, format: Format = "vitkit") -> Path:
    """Write a model's weights.

    Args:
        model: what to save, with its `card` (class names, preprocessing, origin) where the format has room.
        path: a folder for "vitkit"; a file for "official" (with `.npz` added).
        format: "vitkit" (`model.safetensors` and `model.json`) or "official" (the original release's `.npz`).

    Returns:
        The path written.
    """
    path = Path(path)
    if format == "vitkit":
        path.mkdir(parents=True, exist_ok=True)
        save_native(model, path)
        return path
    if format == "official":
        path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        if not model.config.class_token and model.config.pool != "mean":
            raise VitkitError("The original release has no name for a ViT without pooling.")
        half = (0.5,) * model.config.in_channels
        if model.config.gelu != "tanh" or not (model.config.image_mean == model.config.image_std == half):
            _log.warning("%s: the format cannot say that GELU, mean or std differ from the original's", path)
        packed = io.BytesIO()
        arrays = to_official(model.state_dict(), model.config)
        np.savez(packed, **arrays)  # type: ignore[arg-type]  # the stub takes names for options
        replace_file(path, [packed.getbuffer()])
        return path
    raise VitkitError(f"Formats are 'vitkit' and 'official', found '{format}'.")


def _read(path: Path, size: tuple[int, int] | None) -> tuple[ViTConfig, dict[str, Tensor], ModelCard]:
    if path.is_dir() and (path / "model.safetensors").exists():
        path = path / "model.safetensors"
    if path.is_dir():
        raise VitkitError(
            f"No model.safetensors in {path}. If it is a run that has not finished, continue it with "
            f"vitkit train --resume {path}"
        )
    if not path.exists():
        raise VitkitError(f"No checkpoint at {path}.")
    if path.suffix == ".npz":
        arrays = read_official(path)
        config = official_config(arrays, _original_size(arrays, size))
        return config, to_ours(arrays, config), ModelCard(origin={"file": path.name, "dialect": "official"})
    if path.suffix == ".safetensors":
        config, card = read_description(path.with_name("model.json"))
        return config, read_safetensors(path), card
    raise VitkitError(
        f"{path} is none of the checkpoints known: a run folder, a .safetensors with its model.json, "
        "or an .npz of the original release."
    )


def _original_size(arrays: dict[str, np.ndarray], size: tuple[int, int] | None) -> tuple[int, int] | None:
    """The asked-for size where the file's position embeddings fit it; None: take the grid as square."""
    if size is None or "embedding/kernel" not in arrays:
        return None
    rows, columns = (
        side // patch for side, patch in zip(size, arrays["embedding/kernel"].shape[:2], strict=True)
    )
    for key, prefix in (
        ("Transformer/posembed_input/pos_embedding", int("cls" in arrays)),
        ("pos_embedding", 0),
    ):
        if key in arrays and arrays[key].shape[1] == rows * columns + prefix:
            return size
    return None


def _without_head(
    config: ViTConfig, tensors: dict[str, Tensor], num_classes: int
) -> tuple[ViTConfig, dict[str, Tensor]]:
    config = replace(config, num_classes=num_classes, representation_size=None)
    kept = {key: value for key, value in tensors.items() if not key.startswith(("head.", "pre_logits."))}
    example = tensors["head.weight"]
    kept["head.weight"] = example.new_zeros(num_classes, config.width)
    kept["head.bias"] = example.new_zeros(num_classes)
    return config, kept


def _at_size(
    config: ViTConfig, tensors: dict[str, Tensor], size: tuple[int, int], path: Path
) -> tuple[ViTConfig, dict[str, Tensor]]:
    resized = replace(config, image_size=size)
    if resized.grid != config.grid:
        _log.warning(
            "%s: position embeddings resized from a grid of %dx%d to %dx%d; "
            "expect lower accuracy until the model is fine-tuned at this size",
            path,
            *config.grid,
            *resized.grid,
        )
        tensors["position_embedding"] = resize_position_embedding(
            tensors["position_embedding"],
            resized.grid,
            prefix_tokens=config.prefix_tokens,
            old_grid=config.grid,
        )
    return resized, tensors
