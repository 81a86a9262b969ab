"""Export a model to an inference engine: a folder with a graph, which predicts and evaluates.

The engine's logits are compared with PyTorch's before anything is left on the disk, on the run's own images
if its card records them. int8 is compared on real images, and OpenVINO's is calibrated on others.
"""

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from vitkit._version import __version__
from vitkit.data import sources, transforms
from vitkit.data.config import Preprocessing, Splits
from vitkit.data.decode.image import decode, header
from vitkit.data.files import read_unchanged_file
from vitkit.data.layouts.image_paths import find_images, refuse_address
from vitkit.engines import check, graph
from vitkit.engines.folder import (
    FILES,
    LOWEST_AGREEMENT,
    Agreement,
    EngineModel,
    describe_gelu,
    shape_of,
    write_description,
)
from vitkit.engines.golden import CREDIT, IMAGES, Golden, make_golden_files, write_golden
from vitkit.engines.libraries import EnginePrecision, GraphEngine, GraphFormat, refuse_precision
from vitkit.engines.page import refuse_page, write_page
from vitkit.errors import DecodeError, VitkitError
from vitkit.jobs.engines import require_answers, thread_count
from vitkit.jobs.options import LoadingOptions, StrPath, require_at_least
from vitkit.listener import AUTOMATIC, Listener, hushed
from vitkit.models.image_model import ImageModel
from vitkit.result import Facts, Result, Section
from vitkit.runs import start, trained_model
from vitkit.runs.folder import beside, kind_of, refuse_taken
from vitkit.tasks import answering_of
from vitkit.text import format_bytes, format_size, pluralize, visible, without_places
from vitkit.weights import format_names, model_card, published

FEWEST_IMAGES = 10
"""The fewest images to calibrate on and to check with: fewer say nothing of ranges or agreement."""
COMPARED = 16
"""Images on which an exported graph is compared with PyTorch where none are given."""
NO_LICENCE = "not known: no published start is on record as the model's origin"
ENDINGS = {"JPEG": "jpg", "PNG": "png", "NPY": "npy"}
PORTABLE = {("JPEG", "RGB"), ("JPEG", "L"), *(("PNG", mode) for mode in ("RGB", "RGBA", "L", "LA", "P"))}
"""Formats and modes of golden images: of CMYK, 16 bits and others programs make colours of their own."""
SPLITS = {"test": "test", "val": "validation", "train": "training"}
"""The names of splits in sentences."""


class Read(NamedTuple):
    """Images of a model's size."""

    pixels: NDArray[np.uint8]
    """`(N, C, H, W)`."""
    source: str
    """The images as a phrase, without their number."""


@dataclass(frozen=True, repr=False)
class Exported(Result):
    """The result of an export."""

    source: str
    """The path or the address of the model."""
    path: Path
    """The folder, or the page, written."""
    engine: GraphEngine
    """The engine that computes it."""
    precision: EnginePrecision
    agreement: Agreement
    """The comparison of the logits with PyTorch's in float32, and of the answers where images are given."""
    calibration: str | None
    """The images that int8 was calibrated on, as a phrase."""
    notes: tuple[str, ...]
    """Remarks on the source, as `load_model` logs them, and the licence of the published start that it is or
    began from."""
    departures: tuple[str, ...]
    """Sentences on operations that the engine computes in another form than the model."""

    def summary(self) -> str:
        """Name the folder or the page, the precision and the engine."""
        size = f"{format_bytes(self.path.stat().st_size)}, " if self.path.is_file() else ""
        return f"{self.path} ({size}{self.precision} by {self.engine})"

    def sections(self) -> Sequence[Section]:
        """Return the remarks, and how the graph compares with the model."""
        rows = [("note", [f"{self.source}: {note}"]) for note in self.notes]
        rows += [("images", [f"calibrated on {self.calibration}"])] if self.calibration else []
        rows.append(("checked", [str(self.agreement)]))
        rows += (("note", [departure]) for departure in self.departures)
        return (Section("", (Facts((*rows, ("to", [self.summary()]))),)),)

    def following(self) -> Sequence[str]:
        """Return the command that predicts by the graph, or how a page is used."""
        if self.path.suffix.lower() == ".html":
            return (f"open {shlex.quote(str(self.path))} in a browser",)
        return (f"vitkit predict {shlex.quote(str(self.path))} IMAGE_OR_FOLDER",)


def export(
    source: StrPath,
    out: StrPath,
    *,
    to: Literal["bundle", "page"] = "bundle",
    format: GraphFormat = "openvino",
    precision: EnginePrecision = "float32",
    calibration: str | None = None,
    calibration_images: int = 300,
    check_images: int = 500,
    accept_change: bool = False,
    golden: StrPath | None = None,
    inside: bool = False,
    webgpu: bool = False,
    quiet: bool = False,
    listener: Listener = AUTOMATIC,
    **load: Unpack[LoadingOptions],
) -> Exported:
    """Write a model for an inference engine, OpenVINO or ONNX Runtime, into a folder that predict and
    evaluate read.

    Args:
        source: a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
            https://...).
        out: folder of the graph, or file of the page (.html), which must not exist yet.
        to: bundle: a folder. page: a single HTML file that answers in a browser, without a server or a
            request; its graph is ONNX.
        format: format of the graph, and so the engine that computes it: openvino (the extra openvino), or
            onnx (the extra onnxruntime).
        precision: numbers of matrix products: float32, bfloat16 or int8. OpenVINO has all three,
            ONNX Runtime float32 and int8, whose weights alone have 8 bits. int8 needs images: OpenVINO's is
            calibrated on them, and both are compared with float32.
        calibration: images for int8, like the images it will see: a folder of images, labels or not, or any
            data to train on; left out, the training images of a run. Some of them are kept apart to compare
            int8 with float32.
        calibration_images: most images to measure ranges on.
        check_images: most other images to compare the result with float32 on.
        golden: up to 16 images, a folder of JPEG and PNG files, that other machines are checked by; the files
            go with the model, with all that a camera wrote into them. Left out, parts of two photos that
            ship with scikit-learn.
        inside: have the graph resize and cut images itself, so that it takes unsigned bytes of any size; for
            models whose images get no border, bilinear or bicubic.
        webgpu: have a page compute by WebGPU in browsers where the golden set then agrees, and by WebAssembly
            in all others; the page becomes 4.4 MB larger.
        accept_change: keep a result that answers otherwise than float32 on more than 1 % of the images.
        quiet: print nothing but warnings.
        listener: hears the progress and remarks; left out, a notebook shows them and a script is silent.
        load: how the checkpoint is read, as `vitkit.jobs.options.LoadingOptions` describes it. The graph is
            for images of one size.

    Raises:
        VitkitError: the engine is not installed or cannot compute the model; there are too few images; or the
            engine answers otherwise than float32. Nothing is left at `out` then.
    """
    require_at_least(FEWEST_IMAGES, calibration_images=calibration_images, check_images=check_images)
    listener, out = hushed(listener, quiet), Path(out)
    engine: GraphEngine = "onnxruntime" if format == "onnx" or to == "page" else "openvino"
    refuse_taken(out)
    if webgpu and to != "page":
        raise VitkitError("--webgpu is for pages: leave it out, or give --to page.")
    if to == "page":
        if out.suffix.lower() != ".html":
            raise VitkitError(f"A page is a file that ends in .html, found {out}.")
        if inside:
            raise VitkitError("A page resizes images itself: leave --inside out, or --to page.")
        if (given := kind_of(source)).kind == "exported model":
            return _page_of_bundle(given.path, out, webgpu, listener)
    refuse_precision(engine, precision)
    loaded = start.load_any(source, format_names.LoadOptions(**load))
    model = loaded.model
    require_answers(str(source), model)
    graph.refuse_model(engine, model.config)
    rule = model_card.preprocessing_of(model)
    if inside:
        graph.refuse_inside(rule)
    files = make_golden_files(rule.decode.channels) if golden is None else read_golden_files(golden, rule)
    if to == "page":
        refuse_page(rule)
    ranges = compared = calibrated = None
    if precision == "int8" or calibration is not None:
        ranges, compared = read_calibration(model, calibration, calibration_images, check_images, listener)
        if (engine, precision) == ("openvino", "int8"):
            calibrated = f"{len(ranges.pixels):,} {ranges.source}"
    with beside(out) as place:
        folder = place / out.name
        folder.mkdir()
        with listener.progress(f"making the graph of {engine}"):
            images = list(ranges.pixels[:, None]) if ranges is not None else ()
            runner = graph.make_runner(
                model, engine, precision, thread_count(), folder, images, rule if inside else None
            )
        answers = None if compared is None else answering_of(model.card).answers
        pixels, named = compared or _own_images(model, listener)
        with listener.progress("comparing with float32", len(pixels)) as progress:
            agreement = graph.compare(model, runner, pixels, named, answers, progress)
        if precision != "int8":
            graph.refuse_other_logits(agreement, engine, precision)
        if compared is not None and agreement.fraction_same < LOWEST_AGREEMENT:
            difference = (
                f"In {precision} it is another model: {agreement}; expected {LOWEST_AGREEMENT:.0%} or more"
            )
            if not accept_change:
                raise VitkitError(
                    f"{difference}. Nothing is left at {out}. Give more images like those it will see with "
                    "--calibration, take bfloat16 or float32, or add --accept-change to keep it."
                )
            listener.warn(f"{difference}, kept because of --accept-change.")
        # The folder's own card says it, for those who get the folder alone.
        card = model_card.card_of(model)
        licence = published.describe_origin_licence(source, card) or NO_LICENCE
        model.card = replace(card, origin={**card.origin, "licence": licence})
        served = EngineModel(model.config, model.card, runner)
        with listener.progress("computing the golden set"):
            several = answering_of(model.card).several_labels
            # ONNX Runtime's int8 has weights of 8 bits and computes in float32.
            computed = "float32" if engine == "onnxruntime" else precision
            made = write_golden(folder, files, served, computed, several, inside)
        shutil.copyfile(check.__file__, folder / "check.py")
        text = _describe_bundle(out.name, served, engine, precision, golden is None, inside)
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_description(folder, model, engine, precision, agreement, calibrated, inside)
        result = folder
        if to == "page":
            result = place / "page.html"
            with listener.progress("writing the page"):
                write_page(folder, result, out.stem, webgpu)
        refuse_taken(out)
        result.rename(out)
    departures = (*describe_gelu(model.config, precision), *_describe_inside(made))
    notes = (*loaded.notes, f"licence {licence}")
    return Exported(str(source), out, engine, precision, agreement, calibrated, notes, departures)


def _page_of_bundle(bundle: Path, out: Path, webgpu: bool, listener: Listener) -> Exported:
    """Write the page of a bundle that is there already: the same graph, and the same golden set."""
    with beside(out) as place, listener.progress("writing the page"):
        record = write_page(bundle, place / "page.html", out.stem, webgpu)
        refuse_taken(out)
        (place / "page.html").rename(out)
    return Exported(str(bundle), out, record.engine, record.precision, record.agreement, None, (), ())


def read_golden_files(spec: StrPath, rule: Preprocessing) -> dict[str, bytes]:
    """Read up to 16 images, evenly spread over a folder, whose formats and modes every decoder reads alike.

    Args:
        spec: a folder of images, or anything that `vitkit predict` reads.
        rule: the model's preprocessing.

    Returns:
        The files as they are, by the names that they get: "01.jpg".

    Raises:
        VitkitError: there is none.
    """
    named, files = list(find_images([str(spec)])), dict[str, bytes]()
    for image in named[:: max(1, len(named) // IMAGES)]:
        with suppress(DecodeError, VitkitError):
            content = image.content()
            data = (
                content if isinstance(content, bytes) else read_unchanged_file(content, rule.decode.max_bytes)
            )
            read = header(data, rule.decode)
            if len(files) < IMAGES and (read.format == "NPY" or (read.format, read.mode) in PORTABLE):
                decode(data, rule.decode)  # raises for a damaged one
                files[f"{len(files) + 1:02}.{ENDINGS[read.format]}"] = data
    if not files:
        raise VitkitError(
            f"{spec} (--golden): expected JPEG or PNG files of 8 bits, or .npy arrays for a model of other "
            f"channels, found none that can be read. Give other images, or leave --golden out."
        )
    return files


def _describe_inside(golden: Golden) -> list[str]:
    """Say how far a graph that resizes images itself is from Pillow, if it does."""
    if golden.inside is None:
        return []
    # One of the model's own size counts as prepared, and is not cut by the graph.
    other = [image.shape != golden.pixels.shape[1:] for image in golden.decoded]
    inside, logits = golden.inside[other], golden.logits[other, : golden.inside.shape[1]]
    far = float(np.abs(inside - logits).max(initial=0) / (logits.std() or 1))
    same, count = int((inside.argmax(1) == logits.argmax(1)).sum()), len(logits)
    return [
        f"the graph resizes images itself: its logits are at most {far:.1e} of their standard deviation from "
        f"those of images that Pillow resized, and {same} of {count} have the same best class"
    ]


def _describe_bundle(
    name: str,
    model: EngineModel,
    engine: GraphEngine,
    precision: EnginePrecision,
    is_credited: bool,
    inside: bool,
) -> str:
    """Write the README of a bundle."""
    card, classes = model_card.card_of(model), pluralize(model.config.num_classes, "class", "classes")
    scores = " and `novelty`, a score of how strange each image is" if card.refusal is not None else ""
    size = format_size(model.config.image_size)
    graph_file, shape = FILES[engine][0], shape_of(model.config, card, inside)
    return f"""# {visible(card.name or name)}

A model that names {classes}, in {precision} for {engine}. Licence: {visible(card.origin["licence"])}.
Written by vitkit {__version__}.

- Does it compute here as where it was made? `pip install {engine} pillow`, then `python check.py`, or
  `vitkit export --check {name}`. It names the level at which this machine departs.
- What is in photos? `python check.py PHOTO...`, or `vitkit predict {name} PHOTO...`
- `{graph_file}` goes from `images`, {shape}, to `logits`{scores}:
  bytes, channels first, any number N at a time. It subtracts the mean of pixels and divides by their
  deviation itself. `engine.json` says how an image is brought to {size} pixels (height x width) before, and
  holds the hashes of all files; `model.json` names the classes. `golden` has the images of the check, and
  `golden.npz` what was made of them.

{CREDIT if is_credited else ""}
"""


def _own_images(model: ImageModel, listener: Listener) -> Read:
    """Read images to compare logits on: the model's own, of its test split if there is one, else made up.

    The listener hears where the model's own cannot be read any more.
    """
    if (record := model_card.card_of(model).data) is not None and record.has_place:
        try:
            with listener.progress("listing images"):
                data = trained_model.open_model_data(model)
            split = next(split for split in SPLITS if split in data.splits)
            source = f"{SPLITS[split]} images of {data.name}"
            own = _read(model, data.splits[split], COMPARED, source, "reading images to compare on", listener)
            if len(own.pixels):
                return own
        except (VitkitError, OSError) as error:
            listener.note(f"The images that the model was trained with cannot be compared on: {error}")
    return Read(graph.example_images(model, COMPARED).numpy(), graph.MADE_UP)


def read_calibration(
    model: ImageModel, spec: str | None, count: int, check_count: int, listener: Listener
) -> tuple[Read, Read]:
    """Draw images for calibration and for checking, the same at every call, and read them.

    Data with a test or validation split is checked on that split; of other data some images are kept apart.

    Args:
        model: the model.
        spec: the images; None for those that it was trained on.
        count, check_count: most images to calibrate on and to check with.
        listener: hears the progress.

    Raises:
        VitkitError: there are no images, or too few that can be read.
    """
    record = model_card.card_of(model).data
    with listener.progress("listing images"):
        if spec is not None:
            refuse_address(spec)
            rule = model_card.preprocessing_of(model).decode
            data = sources.open_data(spec, Splits(val_fraction=0, test_fraction=0), rule, labelled=False)
            source = f"images of {without_places(spec)}"
        elif record is not None and record.has_place:
            data = trained_model.open_model_data(model)
            source = f"training images of {data.name}"
        else:
            raise VitkitError(
                "The model does not say where the images are that it was trained on, and int8 needs images "
                "to be compared on: give a folder of some hundred like those it will see with --calibration."
            )
    train, split = data.splits["train"], next(split for split in SPLITS if split in data.splits)
    if split == "train":
        what = "reading images to calibrate on and to check with"
        both = _read(model, train, count + check_count, source, what, listener)
        cut = len(both.pixels) * count // (count + check_count)
        calibration, check = (Read(part, source) for part in np.split(both.pixels, [cut]))
    else:
        calibration = _read(model, train, count, source, "reading images to calibrate on", listener)
        what, apart = "reading images to check with", f"{SPLITS[split]} images of {data.name}"
        check = _read(model, data.splits[split], check_count, apart, what, listener)
    if min(len(calibration.pixels), len(check.pixels)) < FEWEST_IMAGES:
        raise VitkitError(
            f"Expected at least {FEWEST_IMAGES} readable images to calibrate on and {FEWEST_IMAGES} others "
            f"to check with, found {len(calibration.pixels)} and {len(check.pixels)} in "
            f"the {source}. Give more images with --calibration."
        )
    return calibration, check


def _read(
    model: ImageModel, samples: sources.Samples, count: int, source: str, what: str, listener: Listener
) -> Read:
    """Read up to `count` images in a fixed random order; unreadable ones are left out."""
    decoded, rule = list[NDArray[np.uint8]](), model_card.preprocessing_of(model)
    with listener.progress(what, min(count, len(samples))) as progress:
        for index in np.random.default_rng(0).permutation(len(samples)).tolist():
            if len(decoded) == count:
                break
            try:
                decoded.append(transforms.preprocess(samples.decode(index), rule).transpose(2, 0, 1))
            except DecodeError:
                continue
            progress(len(decoded))
    # Shaped so that no image at all has the axes of images too.
    return Read(np.array(decoded, np.uint8).reshape(-1, rule.decode.channels, *rule.image_size), source)
