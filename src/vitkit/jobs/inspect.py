"""`vitkit inspect`: the paper's Figures 6 and 7 for any model that can be loaded."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from numpy.typing import NDArray
from torch import Tensor

from vitkit.analysis import drawing, model_figures
from vitkit.analysis.inspect import (
    attention_distance,
    attention_rollout,
    even_attention_distance,
    has_attention_maps,
    patch_filters,
    position_similarity,
)
from vitkit.cli import console
from vitkit.cli.download import download, is_address
from vitkit.data.decode import DecodeError, decode
from vitkit.data.transforms import preprocess
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import evaluating
from vitkit.evaluation.scores import probabilities
from vitkit.jobs.predict import NOT_SAID, SizeOption, listed, said, without_predictions
from vitkit.jobs.run_config import is_run
from vitkit.jobs.run_folder import data_of
from vitkit.models.image_model import ImageModel
from vitkit.models.vit import ViT
from vitkit.weights import load_model
from vitkit.weights.card import card_of
from vitkit.weights.preprocessing import preprocessing_of

IMAGES = 128
"""Images that attention is averaged over: the paper's number (Figure 11)."""
SHOWN = 12
"""Images whose rollout is drawn."""
AXIAL = "an axial model attends along rows and columns, and has no map of all tokens"


def inspect(
    path: str | Path,
    images: Sequence[str | Path] = (),
    out: str | Path | None = None,
    *,
    image_size: int | tuple[int, int] | None = None,
    num_heads: int | None = None,
) -> list[Path]:
    """Draw what a model has learned, as PNG and SVG.

    Filters and position embeddings need the weights alone; attention distance and rollout need images: those
    given, or the test images of the run the model comes from. ResNets have filters only.

    Args:
        path: anything `load_model` reads.
        images: files or folders.
        out: folder for the pictures; left out, `inspect/` in the run folder, beside the checkpoint, or, of a
            model by address, in the working folder.
        image_size, num_heads: as for `load_model`.

    Returns:
        The files written.

    Raises:
        VitkitError: none of the images can be read.
    """
    model = load_model(path, image_size=image_size, num_heads=num_heads)
    return _draw(model, images, _folder(path, out))


def _folder(path: str | Path, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if is_address(path):
        return Path("inspect")
    path = Path(path)
    return (path if path.is_dir() else path.parent) / "inspect"


def _draw(model: ImageModel, images: Sequence[str | Path], folder: Path) -> list[Path]:
    names, pixels = _images(model, images) if has_attention_maps(model) else ([], [])
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    components, shares = patch_filters(model)
    written += drawing.save_figure(model_figures.filter_grid(components, shares), folder / "filters")
    similarity = position_similarity(model)
    if similarity is not None:
        figure = model_figures.position_similarity_map(similarity)
        written += drawing.save_figure(figure, folder / "positions")
    if names:
        assert isinstance(model, ViT)
        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
        described = (
            f"{len(names)} images of {model.config.image_size[0]} x {model.config.image_size[1]} pixels"
        )
        distances = attention_distance(model, batch)
        figure = model_figures.attention_distance_plot(distances, even_attention_distance(model), described)
        written += drawing.save_figure(figure, folder / "attention-distance")
        captions = names[:SHOWN]
        if not without_predictions(model.config):
            guesses = _guesses(model, batch[:SHOWN])
            captions = [f"{name}: {guess}" for name, guess in zip(captions, guesses, strict=True)]
        maps = attention_rollout(model, batch[:SHOWN])
        figure = model_figures.rollout_gallery(pixels[:SHOWN], maps, captions)
        written += drawing.save_figure(figure, folder / "attention-rollout")
    return written


def _images(model: ImageModel, sources: Sequence[str | Path]) -> tuple[list[str], list[NDArray[np.uint8]]]:
    """Names and pixels at the model's size; none where there are none to be had."""
    preprocessing = preprocessing_of(model)
    names: list[str] = []
    pixels: list[NDArray[np.uint8]] = []
    if sources:
        reason = ""
        for path in list(listed(str(source) for source in sources))[:IMAGES]:
            try:
                pixels.append(preprocess(decode(path, preprocessing.decode), preprocessing))
                names.append(path.name)
            except DecodeError as error:
                reason = f"{path}: {error}"
                console.err.print(reason, markup=False)
        if not names:
            raise VitkitError(f"None of the images can be read. The last one: {reason}")
    elif card_of(model).data is not None:
        try:
            data = data_of(model)
        except VitkitError as error:
            console.err.print(f"Without images: {error}", markup=False)
            return names, pixels
        split = next(name for name in ("test", "val", "train") if name in data.splits)
        samples = data.splits[split]
        # Spread over the split: folders list one class after the other.
        for index in np.linspace(0, len(samples) - 1, min(IMAGES, len(samples))).astype(int).tolist():
            try:
                pixels.append(preprocess(samples.decode(index), preprocessing))
                names.append(samples.key(index))
            except DecodeError as error:
                console.err.print(f"{samples.key(index)}: {error}", markup=False)
        order = np.random.default_rng(0).permutation(len(names))  # so that the first few show many classes
        names, pixels = [names[i] for i in order], [pixels[i] for i in order]
    return names, pixels


def _guesses(model: ImageModel, batch: Tensor) -> list[str]:
    """What the model takes each image for, and how sure it is."""
    names = model.card.class_names
    with evaluating(model):
        shares = probabilities(model(batch).float().numpy(), model.card.loss)
    return [
        f"predicted {names[i] if names else f'class {i}'} ({row[i]:.0%})"
        for row, i in zip(shares, shares.argmax(1).tolist(), strict=True)
    ]


def _why_no_attention(model: ImageModel) -> str:
    if not isinstance(model, ViT):
        attends = getattr(model.config, "mixing", None) == "axial"
        return AXIAL if attends else "a ResNet has none"
    if model.config.attention != "full":
        return AXIAL
    if not has_attention_maps(model):
        return "one patch is the whole image, so there is nothing to compare"
    return "they need images: give some with --images"


def main(arguments: list[str]) -> None:
    def command(
        model: Annotated[str, tyro.conf.Positional],
        images: list[str] | None = None,
        out: str | None = None,
        image_size: SizeOption = NOT_SAID,
        num_heads: int | None = None,
    ) -> None:
        """Draw filters, position embeddings, attention distance and attention rollout, as PNG and SVG.

        Args:
            model: run folder, or any checkpoint that vitkit convert reads.
            images: files or folders for the attention pictures; left out, test images of the run.
            out: folder for the pictures; left out, inspect/ in the run folder or beside the checkpoint.
            image_size: height and width; position embeddings are resized.
            num_heads: of the attention, where the file does not say it.
        """
        download(model)
        loaded = load_model(model, image_size=said(image_size), num_heads=num_heads)
        written = _draw(loaded, images or (), _folder(model, out))
        for path in written:
            console.out.print(str(path), markup=False)
        if not any("attention" in path.name for path in written):
            console.out.print(f"No pictures of attention: {_why_no_attention(loaded)}.")
        if is_run(Path(model)):
            following = f"vitkit report {shlex.quote(model)} puts them all on one page"
        else:
            following = f"vitkit card {shlex.quote(model)} says what the model is"
        console.out.print(f"Next: {following}", markup=False, soft_wrap=True)

    tyro.cli(command, args=arguments, prog="vitkit inspect")
