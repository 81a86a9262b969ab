"""Position embeddings of other sizes, resized by the libraries themselves and by their rules here.

    python -m tests.peers.positions [--write] [CLONE]        (inside the environment of scripts/test-peers)

Grids alone: the other comparisons have whole models at other sizes. CLONE is a copy of
github.com/facebookresearch/dinov2, which no registry has: without it DINOv2's own code is left out. `--write`
makes the arrays that the ordinary tests compare with.
"""

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.peers.fixed_weights import SIDE, fixed_grid
from vitkit.jobs.convert import import_library
from vitkit.models.config import Interpolation
from vitkit.models.position import resize_grid

ARRAYS = Path(__file__).parents[1] / "fixtures" / "p_positions.npz"
"""The libraries' grids, as "RULE/LIBRARY/ROWSxCOLUMNS"; `python -m tests.peers.positions --write CLONE` makes
it."""
ALLOWED = 1e-5
GRIDS = ((12, 12), (5, 5), (7, 7), (5, 11))
"""Up, down, and by a single patch; and a rectangle. The last digits of a scale show in a single patch."""
Grid = tuple[int, int]


def by_timm(**arguments: Any) -> Callable[[Tensor, Grid], Tensor]:
    """Make the function that resizes as timm does with these arguments."""

    def resize(grid: Tensor, size: Grid) -> Tensor:
        layers: Any = importlib.import_module("timm.layers")
        rows = grid.flatten(0, 1)[None]
        resized: Tensor = layers.resample_abs_pos_embed(rows, list(size), num_prefix_tokens=0, **arguments)
        return resized[0]

    return resize


def by_open_clip(grid: Tensor, size: Grid) -> Tensor:
    model: Any = importlib.import_module("open_clip.model")
    state = {"visual.positional_embedding": torch.cat([grid[0, :1], grid.flatten(0, 1)])}
    model.resize_pos_embed(state, types.SimpleNamespace(visual=types.SimpleNamespace(grid_size=size)))
    return state["visual.positional_embedding"][1:]


def by_torchvision(grid: Tensor, size: Grid) -> Tensor:
    models: Any = importlib.import_module("torchvision.models.vision_transformer")
    state = {"encoder.pos_embedding": torch.cat([grid[0, :1], grid.flatten(0, 1)])[None]}
    resized: Tensor = models.interpolate_embeddings(16 * size[0], 16, state)["encoder.pos_embedding"]
    return resized[0, 1:]


def by_model(make: Callable[[int], tuple[Any, Any, int]]) -> Callable[[Tensor, Grid], Tensor]:
    """Make the function that resizes as a model does: `make` gives it, its holder of positions, its patch."""

    def resize(grid: Tensor, size: Grid) -> Tensor:
        model, holder, patch = make(grid.shape[-1])
        holder.data = torch.cat([grid[0, :1], grid.flatten(0, 1)])[None]
        tokens = torch.zeros(1, 1 + size[0] * size[1], grid.shape[-1])
        resized: Tensor = model.interpolate_pos_encoding(tokens, patch * size[0], patch * size[1])
        return resized[0, 1:].detach()

    return resize


def by_transformers(family: str, kind: str) -> Callable[[Tensor, Grid], Tensor]:
    """Make the function that resizes as one family of transformers does."""

    def make(dim: int) -> tuple[Any, Any, int]:
        module: Any = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        config = getattr(module, f"{kind}Config")(image_size=16 * SIDE, patch_size=16, hidden_size=dim)
        embeddings = getattr(module, f"{kind}Embeddings")(config)
        return embeddings, embeddings.position_embeddings, 16

    return by_model(make)


def by_dinov2(**arguments: Any) -> Callable[[Tensor, Grid], Tensor]:
    """Make the function that resizes as DINOv2's own code does, from a clone."""

    def make(dim: int) -> tuple[Any, Any, int]:
        module: Any = importlib.import_module("dinov2.models.vision_transformer")
        sizes = {"img_size": 14 * SIDE, "patch_size": 14, "embed_dim": dim, "depth": 1, "num_heads": 1}
        model = module.DinoVisionTransformer(**sizes, block_chunks=0, **arguments).eval()
        return model, model.pos_embed, 14

    return by_model(make)


REGISTERS = "dinov2_with_registers"
RULES: tuple[tuple[Interpolation, str, Callable[[Tensor, Grid], Tensor]], ...] = (
    ("timm", "timm", by_timm()),
    ("flexivit", "timm, flexivit", by_timm(interpolation="bilinear", antialias=False)),
    ("timm", "open_clip", by_open_clip),
    ("timm", "DINOv2 with registers", by_dinov2(interpolate_antialias=True, interpolate_offset=0.0)),
    ("timm", f"transformers, {REGISTERS}", by_transformers(REGISTERS, "Dinov2WithRegisters")),
    ("huggingface", "transformers, vit", by_transformers("vit", "ViT")),
    ("huggingface", "transformers, dinov2", by_transformers("dinov2", "Dinov2")),
    ("dinov2", "DINOv2", by_dinov2()),
    ("torchvision", "torchvision", by_torchvision),
)


def grids(has_dinov2: bool) -> Iterator[tuple[Interpolation, str, Grid, Tensor]]:
    """Every rule and library with the grid that the library makes, `(rows, columns, 4)`."""
    for rule, library, resize in RULES:
        for size in GRIDS:
            if library.startswith("DINOv2") and not has_dinov2:
                continue
            if library == "torchvision" and size[0] != size[1]:  # it knows squares alone
                continue
            yield rule, library, size, resize(fixed_grid(), size).reshape(*size, -1)


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    import_library("timm")
    clone = next((argument for argument in arguments if argument != "--write"), None)
    if clone is not None:
        sys.path.insert(0, clone)
    arrays, failed = {}, False
    print("| rule | library | 8x8 patches to | largest difference | by the original's rule |")
    print("| --- | --- | --- | --- | --- |")
    for rule, library, size, expected in grids(clone is not None):
        name = f"{size[0]}x{size[1]}"
        arrays[f"{rule}/{library}/{name}"] = expected.numpy()
        ours = resize_grid(fixed_grid(), size, rule), resize_grid(fixed_grid(), size)
        difference, by_the_original = (float((grid - expected).abs().max()) for grid in ours)
        failed |= not difference <= ALLOWED
        print(f"| {rule} | {library} | {name} | {difference:.1e} | {by_the_original:.1e} |")
    if clone is None:
        print("DINOv2's own code is left out: give a clone of github.com/facebookresearch/dinov2.")
    elif "--write" in arguments:
        np.savez_compressed(ARRAYS, **arrays)  # type: ignore[arg-type]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
