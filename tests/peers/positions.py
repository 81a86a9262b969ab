"""Position embeddings of other sizes, resized by the libraries themselves and by their rules here.

    python -m tests.peers.positions [--write] [CLONE]        (inside the environment of scripts/test-peers)

First grids alone, then the outputs of small models with random weights, read from a file. CLONE is a copy of
github.com/facebookresearch/dinov2, which no registry has: without it DINOv2's own code is left out. `--write`
makes the arrays that the ordinary tests compare with.
"""

import importlib
import logging
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.peers.fixed_weights import SIDE, fixed_grid
from tests.peers.timm_cases import randomize
from vitkit.jobs.convert import import_library
from vitkit.models.config import Interpolation
from vitkit.models.position import resize_grid
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load

ARRAYS = Path(__file__).parents[1] / "fixtures" / "p_positions.npz"
"""The libraries' grids, as "RULE/LIBRARY/ROWSxCOLUMNS"; `python -m tests.peers.positions --write CLONE` makes
it."""
ALLOWED = 1e-5
DIM, HEADS = 64, 2
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
        model = _dinov2(dim, **arguments)
        return model, model.pos_embed, 14

    return by_model(make)


def _dinov2(dim: int, **arguments: Any) -> Any:
    module: Any = importlib.import_module("dinov2.models.vision_transformer")
    sizes = {"img_size": 14 * SIDE, "patch_size": 14, "embed_dim": dim, "depth": 2, "num_heads": HEADS}
    return module.DinoVisionTransformer(**sizes, init_values=1.0, block_chunks=0, **arguments).eval()


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


def draw(model: Any) -> None:
    """Draw weights with positions and a head that are large enough to show in the outputs."""
    randomize(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "pos" in name:
                parameter.mul_(20)
            if name == "classifier.weight":
                parameter.normal_(0, DIM**-0.5, generator=torch.Generator().manual_seed(1))


def timm_model(folder: Path, name: str = "vit_tiny_patch16_224") -> Callable[[Grid], Any]:
    timm: Any = importlib.import_module("timm")
    small = {"depth": 2, "embed_dim": DIM, "num_heads": HEADS, "num_classes": 10}
    theirs = timm.create_model(name, img_size=16 * SIDE, **small).eval()
    draw(theirs)
    arguments = {**small, "img_size": 16 * SIDE}
    timm.models.save_for_hf(theirs, str(folder), safe_serialization=True, model_args=arguments)

    def at(size: Grid) -> Any:
        sized = (16 * size[0], 16 * size[1])
        return timm.create_model(f"local-dir:{folder}", pretrained=True, img_size=sized).eval()

    return at


def transformers_model(folder: Path) -> Callable[[Grid], Any]:
    library: Any = importlib.import_module("transformers")
    sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "intermediate_size": 128}
    config = library.ViTConfig(image_size=16 * SIDE, num_labels=10, num_hidden_layers=2, **sizes)
    theirs = library.ViTForImageClassification(config).eval()
    draw(theirs)
    theirs.save_pretrained(folder)
    return lambda size: lambda images: theirs(images, interpolate_pos_encoding=True).logits


def torchvision_model(folder: Path) -> Callable[[Grid], Any]:
    models: Any = importlib.import_module("torchvision.models.vision_transformer")

    def build(side: int) -> Any:
        return models.VisionTransformer(16 * side, 16, 2, 12, 768, 3072, num_classes=10).eval()

    theirs = build(SIDE)
    draw(theirs)
    torch.save(theirs.state_dict(), folder / "weights.pth")

    def at(size: Grid) -> Any:
        other = build(size[0])
        other.load_state_dict(models.interpolate_embeddings(16 * size[0], 16, dict(theirs.state_dict())))
        return other

    return at


def dinov2_model(folder: Path) -> Callable[[Grid], Any]:
    theirs = _dinov2(DIM)
    draw(theirs)
    torch.save(theirs.state_dict(), folder / "weights.pth")
    return lambda size: theirs


def models(has_dinov2: bool) -> Iterator[tuple[str, Grid, float, float]]:
    """Small models of each library that is read, at each size: the largest differences of their outputs.

    The second difference is that by the original's rule, in place of the file's.
    """
    patch = {"DINOv2": 14}
    kinds: dict[str, Callable[[Path], Callable[[Grid], Any]]] = {
        "timm": timm_model,
        "timm, flexivit": lambda folder: timm_model(folder, "flexivit_small"),
        "transformers, vit": transformers_model,
        "torchvision": torchvision_model,
    }
    for library, make in (kinds | ({"DINOv2": dinov2_model} if has_dinov2 else {})).items():
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            at = make(Path(folder))
            weights = Path(folder) / "weights.pth"
            source = weights if weights.exists() else folder
            for rows, columns in GRIDS:
                if library == "torchvision" and rows != columns:
                    continue
                size = (patch.get(library, 16) * rows, patch.get(library, 16) * columns)
                images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(rows))
                expected = at((rows, columns))(images)
                given = LoadOptions(image_size=size, num_heads=HEADS if library == "DINOv2" else None)
                differences = [
                    float((load(source, options).model(images) - expected).abs().max())
                    for options in (given, replace(given, position_interpolation="original"))
                ]
                yield library, (rows, columns), differences[0], differences[1]


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    logging.getLogger("vitkit").setLevel(logging.ERROR)
    import_library("timm")
    clone = next((argument for argument in arguments if argument != "--write"), None)
    if clone is not None:
        sys.path.insert(0, clone)
    arrays, failed = {}, False
    print("| rule | library | 8x8 patches to | what | largest difference | by the original's rule |")
    print("| --- | --- | --- | --- | --- | --- |")
    for rule, library, (rows, columns), expected in grids(clone is not None):
        arrays[f"{rule}/{library}/{rows}x{columns}"] = expected.numpy()
        difference = float((resize_grid(fixed_grid(), (rows, columns), rule) - expected).abs().max())
        by_the_original = float((resize_grid(fixed_grid(), (rows, columns)) - expected).abs().max())
        failed |= not difference <= ALLOWED
        print(f"| {rule} | {library} | {rows}x{columns} | grid | {difference:.1e} | {by_the_original:.1e} |")
    for library, (rows, columns), difference, by_the_original in models(clone is not None):
        failed |= not difference <= ALLOWED
        numbers = f"{difference:.1e} | {by_the_original:.1e}"
        print(f"| the file's | {library} | {rows}x{columns} | outputs | {numbers} |")
    if clone is None:
        print("DINOv2's own code is left out: give a clone of github.com/facebookresearch/dinov2.")
    elif "--write" in arguments:
        np.savez_compressed(ARRAYS, **arrays)  # type: ignore[arg-type]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
