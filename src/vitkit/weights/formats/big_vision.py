"""The `.npz` format of google-research/big_vision's ViT (`models/vit.py`), SigLIP's image tower with it.

It differs from the original release's: position embeddings stand at the top and have no row for the class
token; attention pooling has a name; and the blocks may be stacked along the first axis of one array for each
parameter, as a scan over the layers keeps them. bfloat16 arrays become the float32 numbers they stand for.

A file without position embeddings is taken to have sines and cosines, as big_vision's code does.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights import table
from vitkit.weights.files.source import Source, write_npz
from vitkit.weights.formats import official
from vitkit.weights.formats.official import LINEN, attention_and_mlp, rows_of
from vitkit.weights.model_card import ModelCard

POSITION = "pos_embedding"
POOL = "MAPHead_0"
NAMES: table.Names = {
    **LINEN,
    "positions.embedding": POSITION,
    "pooling.probe": f"{POOL}/probe",
    "pooling.norm": f"{POOL}/LayerNorm_0",
    **attention_and_mlp("pooling", f"{POOL}/MultiHeadDotProductAttention_0", f"{POOL}/MlpBlock_0"),
}
"""The parts of a ViT, and big_vision's names for them."""
SCANNED = "Transformer/encoderblock/"

ROOTS = (*official.ROOTS, *(f"{root}img/" for root in official.ROOTS))
"""The image tower of a model with two, image and text: it alone is read."""

WRITTEN_UNDER = "params/"
"""The prefix in big_vision's own checkpoints; its `vit.load` takes bare names too, but other readers may
not."""


def recognises(source: Source) -> bool:
    if (root := official.root_of(source, ROOTS)) is None or f"{root}{official.POSITION}" in source:
        return False
    return any(key.startswith(f"{root}Transformer/") for key in source.shapes) and not any(
        key.startswith(f"{root}conv_root/") for key in source.shapes
    )


def read(source: Source, hints: table.Hints) -> table.Translation:
    """Read the ViT whose arrays have these names and shapes.

    Raises:
        VitkitError: arrays that the configuration is read from are missing; or the image size is neither
            given nor in the file: the grid is not square, or the positions are sines and cosines.
    """
    root = official.root_of(source, ROOTS) or ""
    tree, ignored = official.parameters_of(source, root)
    origin: dict[str, Any] = {}
    if root.endswith("img/"):
        # The image tower alone is kept; `t` and `b` scale and shift its products with the text tower's.
        above = root.removesuffix("img/")
        own = (f"{above}t", f"{above}b")
        text = {key for key in tree.shapes if key.startswith(f"{above}txt/") or key in own}
        ignored |= dict.fromkeys(text, "text tower, and what compares it with the image's")
        tree = tree.renamed({key: key for key in tree.shapes if key not in text})
        origin["tower"] = "img"
    if scanned := any(key.startswith(SCANNED) for key in tree.shapes):
        tree = _unstacked(tree)
    pool = "token" if "cls" in tree else "map" if f"{POOL}/probe" in tree else "mean"
    config = replace(official.encoder_config(tree, pool), class_token_position=False)
    if POSITION in tree:
        table.check_axes(tree, POSITION, 3)
        size, _ = table.image_size_of(tree, config.patch_size, tree.shapes[POSITION][1], hints.image_size)
        config = replace(config, image_size=size)
    else:
        why = f"without a {POSITION} array its positions are sines and cosines, which fit every image size"
        size = table.require_image_size(tree, hints.image_size, why)
        config = replace(config, position="sincos_2d", image_size=size)
        origin["positions"] = "sincos2d, big_vision's only kind without an array: the file holds none"
    rows = rows_of(config, NAMES)
    if scanned:  # all parameters that one stacked array holds are read together
        order: dict[str, list[table.Row]] = {}
        for row in rows:
            order.setdefault(re.sub(r"^blocks\.\d+\.", "blocks.", row.ours), []).append(row)
        rows = [row for group in order.values() for row in group]
    # SigLIP resizes straight to the size; classifiers cut out the middle, as resize_small(256) and
    # central_crop(224) do, the former by averaging the source's pixels (big_vision pp/ops_image.py).
    preprocessing = Preprocessing(config.image_size, "crop")
    if "tower" in origin:
        preprocessing = Preprocessing(config.image_size, antialias=False)
    card = ModelCard(preprocessing=preprocessing, origin=origin)
    return table.Translation(config, rows, card, ignored, tree)


def write(model: ImageModel, path: Path, notes: list[str]) -> Path:
    """Write an `.npz` that big_vision's `vit.load` accepts, every block by itself.

    Where tokens before the patches have positions (the original release), the class token's is added to the
    token itself, as big_vision does (`models/vit.py:341-351`): reading it back makes a model without such a
    row, and the same logits up to the rounding of that one sum.
    """
    config: ViTConfig = model.config
    tensors = dict(model.state_dict())
    if config.prefix_positions:
        embedding = tensors["positions.0.embedding"]
        tensors["class_token"] = tensors["class_token"] + embedding[:, :1]
        tensors["positions.0.embedding"] = embedding[:, 1:]
    arrays = table.to_file_tensors(tensors, rows_of(config, NAMES))
    return write_npz(path, {f"{WRITTEN_UNDER}{name}": array for name, array in arrays.items()})


def unsupported(config: ViTConfig) -> list[str]:
    """Name the parts of a ViT that big_vision's cannot have; its ResNets load the original release's file."""
    storable = {key: values for key, values in table.PLAIN.items() if key != "class_token_position"}
    storable |= {"pool": ("token", "mean", "map"), "position": ("learned", "sincos_2d")}
    return table.unsupported_values(config, storable)


def lost_numerics(config: ViTConfig) -> list[str]:
    """Name the numerics that the format does not record: big_vision's code is its only description."""
    phrases = official.lost_numerics(config)
    if config.position == "sincos_2d" and not any("image size" in phrase for phrase in phrases):
        phrases.append("the image size, which is to be given when the file is loaded")
    return phrases


HOLDINGS = {"ViT": table.Holding(write, unsupported, lost_numerics)}
OTHERS = " (its own code reads them from the official format)"
CHECKPOINT_FORMAT = table.CheckpointFormat("big_vision", recognises, read, HOLDINGS, OTHERS, is_folder=False)


def _unstacked(source: Source) -> Source:
    """Split the arrays of a scanned encoder, which stack all blocks, into one array for each block.

    Raises:
        VitkitError: the file holds a block's parameter twice, stacked and by itself.
    """
    shapes, places = dict[str, tuple[int, ...]](), dict[str, tuple[str, int]]()
    for key, shape in source.shapes.items():
        if not key.startswith(SCANNED) or not shape or 0 in shape:
            shapes[key] = shape
            continue
        for i in range(shape[0]):
            if (name := f"Transformer/encoderblock_{i}/{key.removeprefix(SCANNED)}") in source:
                raise VitkitError(f"{source.path} holds {name} twice: by itself, and as part of {key}.")
            shapes[name], places[name] = shape[1:], (key, i)
    stacks: dict[str, Tensor] = {}  # query, key and value make one tensor of ours

    def read(key: str) -> Tensor:
        if key not in places:
            return source.read(key)
        name, i = places[key]
        if name not in stacks:
            while len(stacks) >= 3:  # before another one is read: each holds all blocks
                stacks.pop(next(iter(stacks)))
            stacks[name] = source.read(name)
        return stacks[name][i].clone()  # or every block would hold on to the whole stack

    return Source(source.path, shapes, read, source.notes)
