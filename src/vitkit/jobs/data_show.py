"""Show training images as a model sees them: some images, and augmented versions of each, pixel by pixel."""

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vitkit.analysis.figures import enlarged
from vitkit.data import channels, listing, sources
from vitkit.data.check import DataCheck, check_data
from vitkit.data.config import DEFAULT_RULE, Augmentation, DecodeRule, Splits
from vitkit.data.stream.loader import TrainLoader, evaluation_batches, sample_at
from vitkit.durable import replace_file
from vitkit.errors import VitkitError
from vitkit.jobs import finetune, recipes
from vitkit.jobs.options import StrPath
from vitkit.listener import AUTOMATIC, SILENT, Listener, hushed
from vitkit.models.config import TaskName
from vitkit.report.template import render_page
from vitkit.result import Photo, Section, Table, png_address
from vitkit.runs import folder, plan
from vitkit.runs.config import Run, with_options
from vitkit.runs.run_options import RunOptions
from vitkit.tasks import find_task
from vitkit.text import format_size, pluralize, visible

TILE = 112
"""Pixels to which small images are enlarged, by repeating each pixel, so that a person sees them."""
MARGIN, LINE, LABEL = 8, 16, 200
"""Pixels between tiles, of a line of text, and of the column of names."""
LETTERS = LABEL // 7
"""Letters that fit into the column of names."""


@dataclass(frozen=True)
class SeenImage:
    """An image, and its augmented versions."""

    name: str
    label: str
    tested: NDArray[np.uint8]
    """The pixels that evaluation and prediction see, `(H, W, C)`."""
    versions: tuple[NDArray[np.uint8], ...]
    """The pixels that training sees in each of the first epochs, `(H, W, C)`, not yet normalised."""


def show(
    path: str,
    *,
    start: StrPath = "",
    recipe: str = "",
    images: int = 6,
    versions: int = 5,
    out: StrPath | None = None,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **options: Unpack[RunOptions],
) -> tuple[Path, Run]:
    """Draw training images beside augmented versions of each, as a model sees them.

    All options of vitkit train that change images may follow: --image-size, --crop-area, --rand-augment,
    --seed, --splits...

    Args:
        path: images to show: "digits" (built in), a folder of class folders or a .zip or .tar of one, a .csv,
            or a folder of .parquet files.
        start: weights whose fine-tuning is shown: a run folder, a file, an address or a name of
            `vitkit starts`.
        recipe: recipe whose training is shown; without it and `start`, fine-tuning by default options.
        images: number of images, the first ones that the run trains on.
        versions: augmented versions of each image, from the first epochs.
        out: file to write, .html or .png; left out, DATA-views.html.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        options: options of training, as for `vitkit.train`.

    Returns:
        The file, and the run whose splits, preprocessing, augmentation and seed make the images.

    Raises:
        VitkitError: there is no such data, no readable image, or another file of that name.
    """
    for name, count in (("images", images), ("versions", versions)):
        if not 1 <= count <= 100:
            raise VitkitError(f"{name} is from 1 to 100, found {count}.")
    if out is not None and Path(out).suffix.lower() not in (".html", ".png"):
        raise VitkitError(f"--out is a file that ends in .html or .png, found {out}.")
    if start:
        run = finetune.finetune_run(start, path, recipe=recipe, **options)
    else:
        base = recipes.recipe(recipe) if recipe else Run(augmentation=recipes.AUGMENTATION)
        run = with_options(replace(base, data=path), options)
    name, sentences, seen = see_images(run, images, versions, hushed(listener, quiet))
    out = Path(f"{re.sub(r'[/:]', '-', name)}-views.html" if out is None else out)
    folder.require_folder(out.parent)
    if out.suffix.lower() == ".png":
        content = _picture(seen, sentences)
    else:  # the page says the sentences itself, and names of any script
        source = png_address(_picture(seen, ()))
        alt = "a row for each image: as it is tested, and as training sees it"
        named = tuple((visible(image.name), visible(image.label)) for image in seen)
        names = Section("Names, in the same order", [Table(("image", "class"), named)])
        parts = [Section("Images", [Photo(source, alt)]), names]
        title, footer = f"{name}, as a model sees it", "Made by vitkit data show."
        content = render_page(title, sentences, parts, footer=footer).encode()
    # The same command again writes the same bytes; another file of that name may be one of the images.
    if out.exists() and not (out.is_file() and out.read_bytes() == content):
        raise VitkitError(f"{out} is there already, with other contents. Choose another name with --out.")
    folder.make_folder(out.parent)
    replace_file(out, [content])
    return out, run


def see_images(
    run: Run, most: int, versions: int, listener: Listener = SILENT
) -> tuple[str, list[str], list[SeenImage]]:
    """Take the first training images of a run, and their versions in the first epochs, from its own loader.

    Returns:
        The name of the data, sentences on the images and their augmentation, and the images.

    Raises:
        VitkitError: as `show`.
    """
    with listener.progress("listing images"):
        data = plan.list_images(run)
    samples, seed = data.splits["train"], run.training.seed
    # Batches of one image: the pixels of a sample follow from seed, epoch and sample alone.
    loader = TrainLoader(samples, run.preprocessing, run.augmentation, batch_size=1, seed=seed, bad_quota=1.0)
    count, images = len(samples), list[SeenImage]()
    epochs = np.arange(versions * count).reshape(versions, count)
    orders = [sample_at(epoch, count, seed)[1] for epoch in epochs]
    with listener.progress("drawing images", most) as progress:
        for sample in orders[0].tolist():
            within = (int(np.flatnonzero(order == sample)[0]) for order in orders)
            places = [epoch * count + place for epoch, place in enumerate(within)]
            batches = [next(loader.batches(place, place + 1)) for place in places]
            if not batches[0].mask[0]:
                continue  # the file cannot be read: vitkit data check lists it
            (tested,) = evaluation_batches(samples, run.preprocessing, 1, indices=[sample])
            augmented = tuple(batch.images[0].permute(1, 2, 0).numpy() for batch in batches)
            label = ", ".join(listing.names_of(samples.labels[sample], data.class_names))
            seen = tested.images[0].permute(1, 2, 0).numpy()
            images.append(SeenImage(samples.key(sample), label, seen, augmented))
            progress(len(images))
            if len(images) == most:
                break
    if not images:
        raise VitkitError(
            f"None of the {count:,} training images of {run.data} can be read. vitkit data check says why."
        )
    size = format_size(run.preprocessing.image_size)
    sentences = [
        f"The first of {pluralize(count, 'training image')} in the order of seed {seed}, at {size} pixels: "
        "as they are tested, and as training sees them in its first epochs, before the model normalises the "
        "pixels.",
        f"Changed at random in training: {'; '.join(describe_augmentation(run.augmentation)) or 'nothing'}.",
    ]
    if mixed := [name for name in ("mixup", "cutmix") if getattr(run.objective, name, 0.0)]:
        sentences.append(
            f"Not shown: {' and '.join(mixed)}, by which the images of a batch are mixed afterwards."
        )
    return data.name, sentences, images


def describe_augmentation(augmentation: Augmentation) -> Iterator[str]:
    """Describe each random change."""
    if augmentation.crop_area is not None:
        least, most = augmentation.crop_area
        yield f"a crop of {least:.0%} to {most:.0%} of the area, resized to the whole"
    if augmentation.flip:
        yield "mirrored left to right, half of the time"
    if augmentation.rotate:
        yield f"turned by up to {augmentation.rotate:g} degrees each way"
    if augmentation.shift:
        yield f"moved by up to {pluralize(augmentation.shift, 'pixel')} each way"
    if augmentation.rand_augment:
        operations = pluralize(augmentation.rand_augment, "operation")
        yield f"{operations} of RandAugment of strength {augmentation.rand_augment_magnitude:g}"
    if augmentation.random_erasing:
        yield f"a box replaced by noise, in {augmentation.random_erasing:.0%} of the images"
    if augmentation.jpeg_scaling:
        yield "large JPEGs decoded at a smaller scale"


def _picture(images: Sequence[SeenImage], sentences: Sequence[str]) -> bytes:
    """Make the picture: a row for each image, with its name before it and the words above all."""
    rows = ((image.tested, *image.versions) for image in images)
    tiles = [[enlarged(channels.to_rgb(pixels), TILE) for pixels in row] for row in rows]
    height, width = tiles[0][0].shape[:2]
    columns = len(tiles[0])
    across = LABEL + columns * (width + MARGIN) + MARGIN
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, across // 7)]
    top = MARGIN + LINE * (len(lines) + 2)
    sheet = Image.new("RGB", (across, top + len(tiles) * (height + MARGIN)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    draw.text((MARGIN, MARGIN), "\n".join(lines), "black", font, spacing=LINE - 12)
    for column in range(columns):
        heading = f"epoch {column}" if column else "as it is tested"
        draw.text((LABEL + column * (width + MARGIN), top - LINE), heading, "black", font)
    for row, (image, pictures) in enumerate(zip(images, tiles, strict=True)):
        down = top + row * (height + MARGIN)
        named = [textwrap.fill(visible(name), LETTERS) for name in (image.label, image.name) if name]
        draw.text((MARGIN, down), "\n".join(named), "black", font)
        for column, pixels in enumerate(pictures):
            sheet.paste(Image.fromarray(pixels), (LABEL + column * (width + MARGIN), down))
    buffer = io.BytesIO()
    sheet.save(buffer, "png")
    return buffer.getvalue()


def check(
    path: str,
    *,
    task: TaskName = "classification",
    splits: Splits = Splits(),  # noqa: B008 (it is frozen)
    decode: DecodeRule = DEFAULT_RULE,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
) -> DataCheck:
    """Read every image once and say what is there: counts, sizes, bad files, duplicates.

    Args:
        path: images to check: "digits" (built in), a folder of class folders or a .zip or .tar of one, a
            .csv, or a folder of .parquet files.
        task: what will be learned: classification, one class for each image; multi-label, any number of
            labels.
        splits: how missing splits would be made.
        decode: how files are read.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.

    Returns:
        The findings, with all that has to be mended before training.

    Raises:
        VitkitError: there is no such data set, or its images cannot be listed.
    """
    problems: tuple[str, ...] = ()
    listener = hushed(listener, quiet)
    with listener.progress("listing images"):
        try:
            data = find_task(task).learning.open_data(path, splits, decode)
        except sources.UnfitDataError as error:
            data, problems = error.listed.cut(splits), error.problems
    with listener.progress("reading images") as progress:
        return replace(check_data(data, progress), problems=problems)
