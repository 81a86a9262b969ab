"""Weights and images that are the same numbers everywhere, for numbers of timm that are shipped."""

import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

ARCHITECTURE = "vit_tiny_patch16_224"
NUMBERS = Path(__file__).parents[1] / "fixtures" / "q_timm_vit_tiny.npz"
"""The outputs of timm for these weights; `python -m tests.peers.timm_names --write` writes it."""


def fixed_tensor(name: str, shape: tuple[int, ...], deviation: float = 0.05) -> Tensor:
    """Draw a tensor of timm by its name: around 1 for the factors of norms, around 0 for all else.

    numpy promises that RandomState draws the same numbers in every version.
    """
    drawn = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
    return torch.from_numpy(np.asarray(centre + deviation * drawn, np.float32))


def fixed_images(channels: int) -> Tensor:
    """Draw one normalised image `(1, C, 224, 224)`."""
    return fixed_tensor(f"images of {channels} channels", (1, channels, 224, 224)) * 10


SIDE = 8
"""Rows and columns of the grid of positions that is resized."""


def fixed_grid() -> Tensor:
    """Draw a grid of positions `(8, 8, 4)`, of numbers of about 1."""
    return fixed_tensor("positions", (SIDE, SIDE, 4)) * 20
