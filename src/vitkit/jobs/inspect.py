"""Draw what a model has learned: the paper's Figures 6 and 7 for any model that can be loaded."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Unpack

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from vitkit.analysis import figures
from vitkit.analysis import inspect as analysis
from vitkit.data import channels, transforms
from vitkit.data.decode.image import decode
from vitkit.data.layouts.image_paths import find_images
from vitkit.durable import refuse_link
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.run_model import evaluation_mode
from vitkit.jobs.options import LoadingOptions, StrPath, StrPaths, as_names
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.image_model import ImageModel
from vitkit.result import Photo, Result, Section, png_address
from vitkit.runs import start, trained_model
from vitkit.runs.folder import kind_of, make_folder, require_folder
from vitkit.tasks import answering_of, answers
from vitkit.text import pluralize
from vitkit.weights import model_card, published

IMAGES = 128
"""Images that attention is averaged over: the paper's number (Figure 11)."""
SHOWN = 12
"""Images whose rollout is drawn."""


@dataclass(frozen=True, repr=False)
class Inspection(Result):
    """The result of an inspection; a notebook shows its pictures."""

    model: str
    """The path or the address of the model."""
    pictures: list[Path]
    """The files written."""
    without_attention: str = ""
    """Why there are no pictures of attention; empty if there are."""

    def summary(self) -> str:
        """Count the pictures, and say why there are none of attention."""
        where = f" in {self.pictures[0].parent}" if self.pictures else ""
        absent = f"; no pictures of attention: {self.without_attention}" if self.without_attention else ""
        return f"{pluralize(len(self.pictures), 'file')}{where}{absent}"

    def sections(self) -> Sequence[Section]:
        """Return the files, why there are none of attention, and the pictures."""
        absent = self.without_attention
        drawn = [path for path in self.pictures if path.suffix == ".png"]
        photos = [Photo(png_address(path.read_bytes()), path.stem) for path in drawn]
        why = f"No pictures of attention: {absent}." if absent else None
        return (Section("", ("\n".join(map(str, self.pictures)), why, *photos)),)

    def following(self) -> Sequence[str]:
        """Return the command that says more of the model."""
        model = shlex.quote(self.model)
        if kind_of(self.model).config is not None:
            return (f"vitkit report {model}   (the whole run on one page)",)
        return (f"vitkit card {model}   (what the model is)",)


def inspect(
    model: StrPath,
    images: StrPaths = (),
    *,
    out: StrPath | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Inspection:
    """Draw filters, position embeddings, attention distance and attention rollout, as PNG and SVG.

    Filters and position embeddings need the weights alone; attention distance and rollout need images.
    ResNets have filters only.

    Args:
        model: a run folder, or any checkpoint that `vitkit convert` reads.
        images: image files, folders, or what `vitkit predict` takes, for the attention pictures; left out,
            test images of the run.
        out: folder to write the pictures to; left out, inspect/ in the run folder or beside the checkpoint.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how the checkpoint is read, as `vitkit.jobs.options.LoadingOptions` describes it.

    Raises:
        VitkitError: none of the images can be read.
    """
    folder = place_of_pictures(model) if out is None else Path(out)
    listener = hushed(listener, quiet)
    require_folder(folder)
    if out is None:
        refuse_link(folder)  # the run may be somebody else's
    loaded = start.load_model(model, **load)
    written: list[Path] = []
    with listener.progress("drawing pictures"):
        for name, figure in _draw(loaded, as_names(images), listener):
            make_folder(folder)
            written += figures.save_figure(figure, folder / name)
    config, without = loaded.config, ""
    if config.attention == "none":
        without = f"a {config.family} has none"
    elif config.attention == "axial":
        without = "an axial model attends along rows and columns, and has no map of all tokens"
    elif not analysis.has_attention_maps(loaded):
        without = "one patch is the whole image, so there is nothing to compare"
    elif not any("attention" in path.name for path in written):
        without = "they need images: give some with --images"
    return Inspection(str(model), written, without)


def place_of_pictures(model: StrPath) -> Path:
    """Return the folder for the pictures of a model; where it is an address, one in the working folder."""
    path = Path("." if published.is_address(model) else model)
    return (path if path.is_dir() else path.parent) / "inspect"


def _draw(model: ImageModel, images: Sequence[str], listener: Listener) -> Iterator[tuple[str, Figure]]:
    """Draw the pictures that there are of a model, each with its name."""
    names, pixels = _images(model, images, listener) if analysis.has_attention_maps(model) else ([], [])
    if model.config.in_channels in (1, 3):
        yield "filters", figures.filter_grid(*analysis.patch_filters(model))
    else:
        listener.note(f"No picture of the filters: {model.config.in_channels} channels are no colours.")
    if (similarity := analysis.position_similarity(model)) is not None:
        yield "positions", figures.position_similarity_map(similarity)
    if names and analysis.has_attention_maps(model):
        height, width = model.config.image_size
        batch = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
        distances, even = analysis.attention_distance(model, batch), analysis.even_attention_distance(model)
        described = f"{len(names)} images of {height} x {width} pixels"
        yield "attention-distance", figures.attention_distance_plot(distances, even, described)
        captions = names[:SHOWN]
        if answers(model.card, model.config):
            with evaluation_mode(model):
                logits = model(batch[:SHOWN]).float().cpu().numpy()
            for number, likely in enumerate(answering_of(model.card).guesses(logits, model.card, top=1)):
                said = ", ".join(f"{guess.name} ({guess.probability:.0%})" for guess in likely) or "nothing"
                captions[number] += f": predicted {said}"
        shown = [channels.to_rgb(image) for image in pixels[:SHOWN]]
        maps = analysis.attention_rollout(model, batch[:SHOWN])
        yield "attention-rollout", figures.rollout_gallery(shown, maps, captions)


def _images(
    model: ImageModel, sources: Sequence[str], listener: Listener
) -> tuple[list[str], list[NDArray[np.uint8]]]:
    """Read images at the model's size, with their names: given, or from the run's own data."""
    rule, names, reason = model_card.preprocessing_of(model), list[str](), ""
    pixels: list[NDArray[np.uint8]] = []
    # The name of each image, its name in a message, and the function that decodes it.
    chosen: list[tuple[str, str, Callable[[], NDArray[np.uint8]]]] = []
    if sources:
        for image in list(find_images(sources))[:IMAGES]:  # all are looked for, so that a missing one is told
            read = partial(lambda image: decode(image.content(), rule.decode), image)
            chosen.append((image.path.name, str(image.path), read))
    elif model_card.card_of(model).data is not None:
        try:
            data = trained_model.open_model_data(model)
        except VitkitError as error:
            listener.note(f"Without images: {error}")
            return names, pixels
        samples = data.splits[next(name for name in ("test", "val", "train") if name in data.splits)]
        # Spread over the split: folders list one class after the other.
        spread = np.linspace(0, len(samples) - 1, min(IMAGES, len(samples))).astype(int)
        # In another order, so that the first few show many classes.
        order = np.random.default_rng(0).permutation(spread).tolist()
        chosen = [(samples.key(i), samples.key(i), partial(samples.decode, i)) for i in order]
    for name, shown, decoded in chosen:
        try:
            pixels.append(transforms.preprocess(decoded(), rule))
            names.append(name)
        except DecodeError as error:
            reason = f"{shown}: {error}"
            listener.note(reason)
    if sources and not names:
        raise VitkitError(f"None of the images can be read. The last one: {reason}")
    return names, pixels
