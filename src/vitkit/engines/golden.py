"""The golden set of a bundle: images as encoded files, and all that the exporting machine made of them.

Another machine goes the same way and is told at which level it departs, and how far: decoding, preprocessing,
the graph, or the answers. Nothing here imports torch, and a bundle may come from anybody: no array is
unpickled, and none is larger than the limit.

Shapes: N images, H x W pixels of C channels, K classes.
"""

import io
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.engines.check import Level, answers_of, compare
from vitkit.engines.folder import GOLDEN, GOLDEN_ARRAYS, EngineModel, is_golden
from vitkit.engines.libraries import EnginePrecision
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.refusal import choose_share, typicality
from vitkit.weights.model_card import preprocessing_of

IMAGES = 16
"""Images of a golden set: a second or two of computing for the largest model."""
MOST_BYTES = 1 << 30
"""Bytes of the arrays of a golden set, unpacked: 16 photos of 20 million pixels."""
FLOAT32, SHORT = 1e-4, 0.1
"""Largest difference of two logits on two machines: in float32 as a fraction of the logits' standard
deviation, in bfloat16 and int8 of the largest logit; `vitkit.engines.graph` has the reasons."""
TIE = 0.05
"""Logits this near, in standard deviations, count as equal: three levels of a decoder move them so far."""

_PICTURES = ("china.jpg", "flower.jpg")
"""The two photos that scikit-learn ships: both are CC BY 2.0, and `CREDIT` names whose they are."""
CREDIT = (
    "The golden images are parts of photos by danielbuechele and vultilion (Flickr, CC BY 2.0) that "
    "scikit-learn ships, cut and encoded anew."
)
_SIZES = (
    "427x640 427x640 300x300 200x320 320x180 224x224 240x200 160x240 "
    "200x200 180x220 200x300 300x260 150x210 48x64 32x32 60x400"
)
"""Height and width of each golden image: larger and smaller than the input of most models."""
_MODES = {6: "L", 7: "L", 8: "P", 9: "RGBA"}
"""Pillow's modes of those that are no RGB."""
_JPEG: dict[int, dict[str, Any]] = {
    0: {},
    1: {"quality": 75, "optimize": True},
    2: {"subsampling": 0},
    3: {"progressive": True},
    6: {},
    10: {"exif": 6},
    11: {"exif": 3},
    12: {"exif": 8},
    14: {},
}
"""Options of those that are JPEGs, as cameras, phones and scanners write them; others are PNGs."""
_ORIENTATION = 274  # EXIF's number of the tag


@dataclass(frozen=True)
class Golden:
    """The golden set of a bundle."""

    files: tuple[Path, ...]
    """The encoded images, N of them."""
    decoded: tuple[NDArray[np.uint8], ...]
    """Each image as decoded by the model's rule, `(h, w, C)`."""
    pixels: NDArray[np.uint8]
    """The images after preprocessing, `(N, H, W, C)`."""
    logits: NDArray[np.float32]
    """Outputs of the bundle's graph for the pixels on the exporting machine, `(N, K)`; with the score of a
    model that has a `Novelty` behind them, `(N, K + 1)`."""
    answers: NDArray[Any]
    """The best class of each image, `(N,)` int64; of several labels whether each is named, `(N, K)` bool."""
    refused: NDArray[np.bool_] | None
    """Whether each image is none of the classes, `(N,)`; None for a model that refuses nothing."""
    inside: NDArray[np.float32] | None
    """Logits of a graph that resizes images itself, for the decoded ones, `(N, K)`; None for one that does
    not."""
    allowed: float
    """The largest difference of a logit on another machine."""
    tie: float
    """The largest difference of two logits that may change places on another machine."""


def read_golden(folder: Path) -> Golden:
    """Read the golden set of a bundle, whose checksums `read_description_of` has checked.

    Raises:
        VitkitError: the folder has none, as exports of other programs do, or it is damaged or too large.
    """
    path = folder / GOLDEN_ARRAYS
    if not path.is_file():
        raise VitkitError(
            f"{path} is missing, so that nothing says what the model answered when it was exported. Copy the "
            "whole folder again, or export the model again."
        )
    try:
        arrays = _read_arrays(path)
        files = tuple(sorted(path for path in (folder / GOLDEN).iterdir() if is_golden(path.name)))
        decoded = tuple(arrays[f"decoded_{file.stem}"] for file in files)
        golden = Golden(
            *(files, decoded, arrays["pixels"], arrays["logits"], arrays["answers"], arrays.get("refused")),
            arrays.get("inside"),
            *(float(arrays["allowed"]), float(arrays["tie"])),
        )
        _check_shapes(golden)
    except (KeyError, ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile) as error:
        raise VitkitError(
            f"{path} is no golden set of a bundle ({error}). Copy the whole folder again, or export the "
            "model again."
        ) from error
    return golden


def _read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of an .npz file, none of which takes more memory than its file says and the limit has.

    Raises:
        ValueError: one does, or holds Python objects.
    """
    arrays = dict[str, NDArray[Any]]()
    with zipfile.ZipFile(path) as packed:
        total = sum(member.file_size for member in packed.infolist())
        if total > MOST_BYTES:
            raise ValueError(f"its arrays have {total:,} bytes, more than the {MOST_BYTES:,} allowed")
        for member in packed.infolist():
            data = packed.read(member)
            stream = io.BytesIO(data)
            np.lib.format.read_magic(stream)
            shape, _, kind = np.lib.format.read_array_header_1_0(stream)
            # A header that promises more than there is would reserve the memory first.
            if (
                kind.hasobject
                or kind.itemsize * int(np.prod(shape, dtype=object)) != len(data) - stream.tell()
            ):
                raise ValueError(f"the header of {member.filename} does not fit its contents")
            array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


def _check_shapes(golden: Golden) -> None:
    """Refuse arrays that do not belong together, by a ValueError."""
    count = len(golden.files)
    per_image: list[NDArray[Any]] = [golden.pixels, golden.logits, golden.answers]
    per_image += [array for array in (golden.refused, golden.inside) if array is not None]
    bytes_alone = all(array.dtype == np.uint8 for array in (*golden.decoded, golden.pixels))
    if not count or not bytes_alone or any(len(array) != count for array in per_image):
        raise ValueError(f"its arrays are not those of {count} images of unsigned bytes")
    labels, classes = golden.answers, golden.logits.shape[-1]
    if labels.ndim == 1 and not (labels.dtype == np.int64 and ((labels >= 0) & (labels < classes)).all()):
        raise ValueError(f"its answers are not numbers of {classes} classes")
    axes = {array.ndim for array in golden.decoded} | {golden.pixels.ndim - 1}
    if axes != {3} or golden.logits.ndim != 2 or golden.logits.dtype != np.float32:
        raise ValueError("its arrays have other axes or types than a golden set")


def check_golden(model: EngineModel, golden: Golden) -> tuple[Level, ...]:
    """Go the way from the encoded files to the answers, and compare each step with the exporting machine.

    Each of the first three levels begins with what the bundle holds of the one before, so that a fault shows
    at its own level; the last one goes the whole way.

    Returns:
        The levels decoding, pixels, logits, inside where the graph resizes images itself, and answers.

    Raises:
        VitkitError: the model takes images of another size than the golden set's.
    """
    rule = preprocessing_of(model)

    def read(file: Path) -> NDArray[np.uint8] | None:
        with suppress(DecodeError):  # a Pillow without this decoder, say
            return decode(file, rule.decode)
        return None

    arrays: dict[str, Any] = {name: value for name, value in vars(golden).items() if value is not None}
    pairs = zip(golden.files, golden.decoded, strict=True)
    arrays |= {f"decoded_{file.stem}": image for file, image in pairs}
    classes = model.config.num_classes
    return compare(
        *(arrays, golden.files, classes, read, lambda image: preprocess(image, rule)),
        *(
            model.with_novelty if golden.inside is None else model.runner,
            lambda outputs: refused_by(model, outputs),
        ),
    )


def refused_by(model: EngineModel, outputs: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Say which images are none of a model's classes by its own share, `(N,)`.

    Args:
        model: with a record of refusal.
        outputs: `(N, K + 1)`.
    """
    record = model.card.refusal
    assert record is not None
    return np.asarray(typicality(outputs[:, -1], record.scores) <= choose_share(record, None))


def write_golden(
    folder: Path,
    files: Mapping[str, bytes],
    model: EngineModel,
    precision: EnginePrecision,
    several_labels: bool,
    inside: bool = False,
) -> Golden:
    """Write a golden set into a bundle: the encoded files, and what this machine makes of them.

    Args:
        folder: the bundle, whose graph is there already.
        files: the encoded images by their endings' names: "01.jpg".
        model: computed by the bundle's own graph.
        precision: of the graph.
        several_labels: whether each class is a yes or no of its own.
        inside: whether the graph takes images of any size.

    Raises:
        DecodeError: an image cannot be read.
    """
    (folder / GOLDEN).mkdir()
    rule, decoded = preprocessing_of(model), dict[str, NDArray[np.uint8]]()
    for name, data in files.items():
        (folder / GOLDEN / name).write_bytes(data)
        decoded[Path(name).stem] = decode(data, rule.decode)
    pixels = np.stack([preprocess(image, rule) for image in decoded.values()])
    outputs = model.with_novelty(pixels.transpose(0, 3, 1, 2))
    logits = outputs[:, : model.config.num_classes]
    spread, largest = float(logits.std(dtype=np.float64)), float(np.abs(logits).max())
    # Four units in the last place, for logits that hardly differ from one another.
    allowed = FLOAT32 * spread + 4 * 2.0**-23 * largest if precision == "float32" else SHORT * largest
    arrays: dict[str, Any] = {f"decoded_{name}": image for name, image in decoded.items()}
    arrays |= {"pixels": pixels, "logits": outputs, "answers": answers_of(logits, several_labels)}
    arrays |= {"allowed": np.float64(allowed), "tie": np.float64(max(2 * allowed, TIE * spread))}
    if inside:
        whole = [np.ascontiguousarray(image.transpose(2, 0, 1)[None]) for image in decoded.values()]
        arrays["inside"] = np.concatenate([model.runner(image) for image in whole])[:, : logits.shape[1]]
    if model.card.refusal is not None:
        arrays["refused"] = refused_by(model, outputs)
    np.savez_compressed(folder / GOLDEN_ARRAYS, **arrays)
    return read_golden(folder)


def make_golden_files(channels: int) -> dict[str, bytes]:
    """Encode parts of the two photos that scikit-learn ships, for a model of so many channels, by file name.

    A model of other channels than grey, RGB and RGBA reads arrays: its images are .npy files, whose channels
    are the photos' again and again.
    """
    spec = find_spec("sklearn")  # its photos are read by themselves: to import it takes a second
    assert spec is not None and spec.origin is not None  # vitkit needs it
    place = Path(spec.origin).parent / "datasets" / "images"
    photos = [Image.open(place / name).convert("RGB") for name in _PICTURES]
    files = dict[str, bytes]()
    for number, size in enumerate(_SIZES.split()):
        height, width = map(int, size.split("x"))
        photo, mode, stream = photos[number % 2], _MODES.get(number, "RGB"), io.BytesIO()
        left, top = (photo.width - width) * number // IMAGES, (photo.height - height) * number // IMAGES
        part = photo.crop((left, top, left + width, top + height))
        if channels not in (1, 3, 4):
            ending = "npy"
            np.save(stream, np.asarray(part)[:, :, np.arange(channels) % 3], allow_pickle=False)
        else:
            ending = "jpg" if number in _JPEG else "png"
            saving = {"quality": 90} | _JPEG.get(number, {})
            if mode == "RGBA":  # from transparent at the left to opaque at the right
                part.putalpha(Image.linear_gradient("L").rotate(90).resize(part.size))
            part = part.quantize(64) if mode == "P" else part.convert(mode)
            if "exif" in saving:
                exif = Image.Exif()
                exif[_ORIENTATION], saving["exif"] = saving["exif"], exif
            part.save(stream, "JPEG" if ending == "jpg" else "PNG", **saving)
        files[f"{number + 1:02}.{ending}"] = stream.getvalue()
    return files
