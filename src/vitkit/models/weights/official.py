"""The `.npz` layout of google-research/vision_transformer: names, shapes, and which ViT they make.

Both namings are read: that of the released files (before Flax's Linen) and that of today's code. The
position embedding may also stand outside the class token, as big_vision keeps it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.vit import ViTConfig

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Naming:
    """The four names in an encoder block that differ between releases."""

    norm1: str
    attention: str
    norm2: str
    mlp: str


RELEASED = Naming("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN = Naming("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def read_official(path: Path) -> dict[str, Array]:
    """All arrays of an `.npz`; nothing in it is ever executed.

    Raises:
        VitkitError: the file is damaged, or holds Python objects.
    """
    try:
        # Opened here, since numpy leaves the file open when it turns out to be no archive.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise VitkitError(f"No file at {path}.") from None
    except Exception as error:  # numpy and zipfile raise many kinds for a damaged file
        raise VitkitError(f"{path} cannot be read as an .npz of arrays: {error}") from error


def official_config(arrays: Mapping[str, Array], image_size: tuple[int, int] | None = None) -> ViTConfig:
    """The architecture that the arrays' names and shapes stand for.

    Args:
        arrays: by official name.
        image_size: `(height, width)` the weights were made for, where the grid is not square.

    Raises:
        VitkitError: the arrays are not those of a plain ViT, or the grid is not square and not given.
    """
    needed = ("embedding/kernel", "head/kernel", "head/bias", "Transformer/encoder_norm/scale")
    missing = [key for key in needed if key not in arrays]
    if missing or _position_key(arrays) is None:
        raise VitkitError(
            f"Expected the arrays of a Vision Transformer, but {', '.join(missing) or 'pos_embedding'} is "
            f"not among the {len(arrays)} found (first: {', '.join(sorted(arrays)[:3])})."
        )
    if any(key.startswith("conv_root") for key in arrays):
        raise VitkitError("These are the weights of a hybrid (ResNet stem); only plain ViTs are read so far.")
    blocks = {int(match[1]) for key in arrays if (match := re.match(r"Transformer/encoderblock_(\d+)/", key))}
    naming = _naming(arrays)
    patch_height, patch_width, in_channels, width = arrays["embedding/kernel"].shape
    query = arrays[f"Transformer/encoderblock_0/{naming.attention}/query/kernel"]
    position_key = _position_key(arrays)
    assert position_key is not None
    class_token = "cls" in arrays
    class_token_position = position_key.startswith("Transformer/")
    positions = arrays[position_key].shape[1] - (class_token and class_token_position)
    if image_size is None:
        side = round(positions**0.5)
        if side * side != positions:
            raise VitkitError(
                f"The file's {positions} position embeddings are no square grid: "
                "give the image size they were made for, image_size=(height, width)."
            )
        image_size = (side * patch_height, side * patch_width)
    return ViTConfig(
        image_size=image_size,
        patch_size=(patch_height, patch_width),
        width=width,
        depth=len(blocks),
        num_heads=query.shape[1],
        mlp_dim=arrays[f"Transformer/encoderblock_0/{naming.mlp}/Dense_0/bias"].shape[0],
        num_classes=arrays["head/bias"].shape[0],
        in_channels=in_channels,
        pool="token" if class_token else "mean",
        class_token_position=class_token_position,
        representation_size=arrays["pre_logits/bias"].shape[0] if "pre_logits/bias" in arrays else None,
        image_mean=(0.5,) * in_channels,
        image_std=(0.5,) * in_channels,
    )


def to_ours(arrays: Mapping[str, Array], config: ViTConfig) -> dict[str, Tensor]:
    """Official arrays to our names and shapes.

    Raises:
        VitkitError: an array is missing or left over: nothing is dropped in silence.
    """
    table = name_table(config, _naming(arrays))
    theirs = [name for row in table for name in row.theirs]
    missing, unexpected = sorted(set(theirs) - set(arrays)), sorted(set(arrays) - set(theirs))
    if missing or unexpected:
        raise VitkitError(
            "The arrays are not those of a plain ViT."
            + (f" Missing: {', '.join(missing[:8])}." if missing else "")
            + (f" Unexpected: {', '.join(unexpected[:8])}." if unexpected else "")
        )
    return {
        row.ours: torch.from_numpy(
            np.ascontiguousarray(row.read([arrays[name] for name in row.theirs]), dtype=np.float32)
        )
        for row in table
    }


def to_official(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Array]:
    """Our tensors to the names and shapes of the released files."""
    arrays: dict[str, Array] = {}
    for row in name_table(config, RELEASED):
        parts = row.write(tensors[row.ours].detach().float().cpu().numpy())
        arrays |= {name: np.ascontiguousarray(part) for name, part in zip(row.theirs, parts, strict=True)}
    return arrays


@dataclass(frozen=True)
class Row:
    """One of our parameters, the official arrays it is made of, and the way there and back."""

    ours: str
    theirs: tuple[str, ...]
    read: Callable[[list[Array]], Array]
    write: Callable[[Array], list[Array]]


def name_table(config: ViTConfig, naming: Naming) -> list[Row]:
    """Every parameter of a ViT of `config` and where the official layout keeps it."""
    width, heads, head_dim = config.width, config.num_heads, config.head_dim

    def same(ours: str, theirs: str) -> Row:
        return Row(ours, (theirs,), lambda arrays: arrays[0], lambda array: [array])

    def dense(ours: str, theirs: str) -> list[Row]:
        kernel = Row(
            f"{ours}.weight", (f"{theirs}/kernel",), lambda arrays: arrays[0].T, lambda array: [array.T]
        )
        return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]

    def norm(ours: str, theirs: str) -> list[Row]:
        return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]

    def attention(ours: str, theirs: str) -> list[Row]:
        parts = ("query", "key", "value")
        return [
            Row(
                f"{ours}.qkv.weight",
                tuple(f"{theirs}/{part}/kernel" for part in parts),  # each (D, heads, head_dim)
                lambda arrays: np.concatenate([array.reshape(width, width).T for array in arrays]),
                lambda array: [part.T.reshape(width, heads, head_dim) for part in np.split(array, 3)],
            ),
            Row(
                f"{ours}.qkv.bias",
                tuple(f"{theirs}/{part}/bias" for part in parts),  # each (heads, head_dim)
                lambda arrays: np.concatenate([array.reshape(width) for array in arrays]),
                lambda array: [part.reshape(heads, head_dim) for part in np.split(array, 3)],
            ),
            Row(
                f"{ours}.out.weight",
                (f"{theirs}/out/kernel",),  # (heads, head_dim, D)
                lambda arrays: arrays[0].reshape(width, width).T,
                lambda array: [array.T.reshape(heads, head_dim, width)],
            ),
            same(f"{ours}.out.bias", f"{theirs}/out/bias"),
        ]

    stem = Row(
        "stem.weight",
        ("embedding/kernel",),  # (height, width, channels, D)
        lambda arrays: arrays[0].transpose(3, 2, 0, 1),
        lambda array: [array.transpose(2, 3, 1, 0)],
    )
    inside = config.class_token_position or not config.class_token
    position = "Transformer/posembed_input/pos_embedding" if inside else "pos_embedding"
    rows = [stem, same("stem.bias", "embedding/bias"), same("position_embedding", position)]
    if config.class_token:
        rows.append(same("class_token", "cls"))
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        rows += norm(f"{ours}.norm1", f"{theirs}/{naming.norm1}")
        rows += attention(f"{ours}.attention", f"{theirs}/{naming.attention}")
        rows += norm(f"{ours}.norm2", f"{theirs}/{naming.norm2}")
        rows += dense(f"{ours}.mlp.fc1", f"{theirs}/{naming.mlp}/Dense_0")
        rows += dense(f"{ours}.mlp.fc2", f"{theirs}/{naming.mlp}/Dense_1")
    rows += norm("norm", "Transformer/encoder_norm")
    if config.representation_size:
        rows += dense("pre_logits", "pre_logits")
    return rows + dense("head", "head")


def _naming(arrays: Mapping[str, Array]) -> Naming:
    linen = f"Transformer/encoderblock_0/{LINEN.attention}/query/kernel"
    return LINEN if linen in arrays else RELEASED


def _position_key(arrays: Mapping[str, Array]) -> str | None:
    keys = ("Transformer/posembed_input/pos_embedding", "pos_embedding")
    return next((key for key in keys if key in arrays), None)
