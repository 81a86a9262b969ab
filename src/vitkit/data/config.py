"""The options of data: how images are decoded, prepared, augmented and loaded, and how splits are cut.

The defaults of `Preprocessing` and `Augmentation` follow vision_transformer/vit_jax/input_pipeline.py: lines
195-211 draw the crop and the flip of training, lines 212-214 stretch an image to the model's size in
evaluation. `resize="crop"` is big_vision's `resize_small(256)|central_crop(224)`; `resize="longest"` is
timm's crop_mode border.

All are plain values, saved with the run; `Preprocessing` and `Augmentation` with the model too. They need
neither torch nor numpy nor Pillow.
"""

import math
import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Literal

from vitkit.config import IN_PYTHON_ALONE, AtLeastOne, Folds, Range, Seed, Valid, ZeroOrMore, require_valid
from vitkit.errors import VitkitError

_BOUND = r"-?\d+(?:\.\d+)?%|-?\d+|"
_SLICE = re.compile(rf"({_BOUND}):({_BOUND})")
_SPLIT = re.compile(r"(\w+)\s*\[(.*)\]")
_EXAMPLES = "[:10%] (the first tenth), [10%:] (the rest), [-500:] (the last 500) or [100:200]"


@dataclass(frozen=True)
class Slice:
    """A part of a split, from one place to another in the order of its images.

    `train[:10%]`, `test[-500:]`, or a fraction such as 0.1: the notation of TensorFlow Datasets, which
    the configurations of the original code use.
    """

    start: str
    """A number of images, or a percentage with its sign; below 0: from the end; empty: from the beginning."""
    stop: str
    """The place after the last image, in the same notation; empty: to the end."""

    def __str__(self) -> str:
        return f"[{self.start}:{self.stop}]"

    def of(self, count: int) -> tuple[int, int]:
        """Return the first place and the place after the last one, in a split of `count` images.

        Percentages are rounded to whole images, so that [:10%] and [10%:] overlap in none and leave none out.

        Raises:
            VitkitError: the split has no such images.
        """
        first = _place(self.start, count) if self.start else 0
        last = _place(self.stop, count) if self.stop else count
        if not 0 <= first < last <= count:
            raise VitkitError(
                f"The slice {self} goes from image {first:,} to {last:,} of {count:,}: expected at least one "
                f"image, and none beyond the last. Slices are {_EXAMPLES}."
            )
        return first, last


def _place(bound: str, count: int) -> int:
    """Turn a bound of a slice into a number of images from the beginning."""
    value = Fraction(bound.removesuffix("%"))
    images = int(abs(value) * count / 100 + Fraction(1, 2)) if bound.endswith("%") else int(abs(value))
    return count - images if bound.startswith("-") else images


WHOLE = Slice("", "")
"""The slice that holds all images."""


def parse_slice(text: str) -> Slice:
    """Read a slice, with or without its brackets; [0:010.0%] is the same value as [:10%].

    Raises:
        VitkitError: it is no slice.
    """
    if (match := _SLICE.fullmatch(text.removeprefix("[").removesuffix("]").replace(" ", ""))) is None:
        raise VitkitError(f"Expected a part of a split such as {_EXAMPLES}, found {text!r}.")
    start, stop = (_shortest(bound) for bound in match.groups())
    return Slice("" if start in ("0", "0%", "-100%") else start, "" if stop == "100%" else stop)


def _shortest(bound: str) -> str:
    """Write a bound without needless zeros: 10.0% as 10%, 010 as 10."""
    sign = "%" if bound.endswith("%") else ""
    return f"{Decimal(bound.removesuffix('%')).normalize():f}{sign}" if bound else ""


def parse_subset(text: str) -> Slice:
    """Read a part of the training images: a fraction such as 0.1, or a slice.

    Raises:
        VitkitError: it is neither.
    """
    if not isinstance(text, str):
        raise VitkitError(f'subset is a text such as "0.1" or "[:10%]", found {text!r}.')
    if re.fullmatch(r"\d*\.?\d+", text):
        fraction = Decimal(text)
        if not 0 < fraction <= 1:
            raise VitkitError(
                f"subset is a fraction above 0 and at most 1, found {text}. For a number of images write "
                "[:500]."
            )
        return parse_slice(f":{100 * fraction:f}%")
    return parse_slice(text)


def parse_split(name: str) -> tuple[str, Slice | None]:
    """Read the name of a split or of a part of it: "test", or "train[:10%]"; spaces around it are left out.

    Raises:
        VitkitError: it has brackets that are not a pair at its end, or that hold no slice.
    """
    if (match := _SPLIT.fullmatch(name.strip())) is not None:
        part = parse_slice(match[2])
        return match[1], None if part == WHOLE else part
    if "[" in name or "]" in name:
        raise VitkitError(
            'Expected the name of a split such as test, or a part of one such as "test[:10%]" with both '
            f"brackets at its end, found {name!r}."
        )
    return name.strip(), None


BYTES_PER_PIXEL = 8
"""Bytes of memory per pixel that decoding may take: 4 for an RGB image in Pillow, 3 for the array, 1 more."""
OVERHEAD_BYTES = 16_000_000
"""Bytes of memory that do not depend on the number of pixels: headers, tables, strips."""
# The memory limit never falls below the limit for this many pixels: a low max_pixels is meant to reject large
# images, not small images whose format needs much memory.
_FEWEST_PIXELS = 16_000_000
Level = Annotated[int, Range("from 0 to 255", 0, 255)]
Part = Annotated[float, Range("from 0 to 1", 0, 1)]
JPEG_SCALES = (8, 4, 2)
"""libjpeg decodes the sides of an image so many times smaller."""
MOST_CHANNELS = 1024
"""The most channels of an image: a hyperspectral one has some hundreds."""


@dataclass(frozen=True)
class DecodeRule(Valid):
    """The rule by which an image file becomes pixels; it is saved with the model."""

    apply_exif: bool = field(default=True, metadata=IN_PYTHON_ALONE)
    """Turn the image as the orientation in its EXIF block (or its TIFF tag) says. Published ImageNet figures
    were made without."""
    background: tuple[Level, Level, Level] = (255, 255, 255)
    """The colour under transparent pixels: red, green, blue in 0..255."""
    max_pixels: AtLeastOne = 64_000_000
    """Larger images are refused from their header, before any pixel is decoded. So are those that take more
    than 8 bytes for each of these pixels to decode, their file included (528 MB by default, 144 MB at
    least): WebP from 32 million pixels on, JPEG 2000 and AVIF from 26, progressive JPEGs without
    subsampling from 52."""
    channels: Annotated[int, Range(f"from 1 to {MOST_CHANNELS}", 1, MOST_CHANNELS)] = 3
    """Channels of the model's input. 3: red, green, blue; grey images are repeated. 1: grey; colours become
    their luma. 4: with alpha, which is kept instead of shown on the background. Any number from arrays: .npy
    of (height, width, channels), and TIFF files of so many grey pages. 16 bits are scaled to 8."""

    jpeg_side: AtLeastOne | None = None
    """Decode JPEGs at a half, a quarter or an eighth of their size where the shorter side keeps at least this
    many pixels: large photographs are read several times as fast, in less memory. The pixels are libjpeg's,
    which shrinks by its own rule, so that a model should be trained with what it is used with. Left out, all
    are decoded at their whole size."""

    def jpeg_scale(self, height: int, width: int) -> int:
        """Return how many times smaller each side of a JPEG is decoded, rounded up: 1, 2, 4 or 8."""
        if self.jpeg_side is None:
            return 1
        side = min(height, width)
        return next((scale for scale in JPEG_SCALES if side >= scale * self.jpeg_side), 1)

    @property
    def max_bytes(self) -> int:
        """Bytes of memory that decoding one image may take: they follow from `max_pixels`."""
        return BYTES_PER_PIXEL * max(self.max_pixels, _FEWEST_PIXELS) + OVERHEAD_BYTES


DEFAULT_RULE = DecodeRule()
Resize = Literal["stretch", "crop", "shortest", "longest", "squash", "none"]


Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
"""Pillow's filters, by the names that timm gives them."""


@dataclass(frozen=True)
class Preprocessing:
    """The way from a decoded image to the input of the model; the same in evaluation and prediction."""

    image_size: tuple[AtLeastOne, AtLeastOne]
    """Height and width of the model's input in pixels: `--image-size 224` or `--image-size 224 320`."""
    resize: Resize = "stretch"
    """The way in which images are brought to image_size. stretch: directly, whatever their proportions, as
    the original code evaluates. crop: keep the proportions, resize to cover image_size / crop_fraction and
    cut out the middle, as in big_vision. The others are as in timm, torchvision and transformers, which
    all cut image_size out of the middle. shortest: the shortest side becomes image_size / crop_fraction.
    longest: the longest side does, so that the whole image is seen between borders. squash: both sides do,
    each by itself. none: the image is not resized."""
    crop_fraction: float = 0.875
    """Side of image_size divided by the side of the resized image: with 0.875, a model of 224 pixels sees the
    middle of an image resized to 256. Above 1 the image has borders (not with crop). stretch and none ignore
    it."""
    antialias: bool = True
    """Average over the source pixels when an image is shrunk. Without it, plain bilinear sampling at
    half-pixel centres, as `tf.image.resize` does by default and the original code did."""
    decode: DecodeRule = DEFAULT_RULE
    interpolation: Interpolation = "bilinear"
    """Pillow's filter for resizing. Without antialias only bilinear is available."""
    crop_offset: Literal["even", "down"] = field(default="even", metadata=IN_PYTHON_ALONE)
    """The place of the middle when an odd number of pixels is cut off: half of that number is rounded to the
    even number (torchvision, timm) or down (transformers; crop always rounds down)."""
    border: tuple[Level, Level, Level] = field(default=(0, 0, 0), metadata=IN_PYTHON_ALONE)
    """Colour around an image that does not fill image_size: red, green, blue in 0..255."""

    def __post_init__(self) -> None:
        require_valid(self)
        # Above 1 the image has borders, which crop never has.
        most = 1 if self.resize == "crop" else 1000
        if not 0.001 <= self.crop_fraction <= most:
            raise VitkitError(f"crop_fraction must be from 0.001 to {most}, found {self.crop_fraction}.")
        if not self.antialias and self.interpolation != "bilinear":
            raise VitkitError(
                f"antialias=False goes with bilinear interpolation alone, found {self.interpolation!r}."
            )

    def resized(self, axis: Literal[0, 1]) -> int:
        """Compute the side in pixels that images, or their shortest or longest side, are resized to.

        `crop` rounds to the nearest pixel, as big_vision does; the others down, as timm and torchvision do.
        """
        side = self.image_size[axis] / self.crop_fraction
        return round(side) if self.resize == "crop" else max(math.floor(side), 1)


@dataclass(frozen=True)
class Augmentation:
    """The random changes of training images; saved with the model.

    The defaults are the original code's. Pixels that shifting and turning uncover repeat the pixel at
    the edge.
    """

    crop_area: tuple[float, float] | None = (0.05, 1.0)
    """Smallest and largest fraction of the image's area that a random crop takes; None for no crop. The crop
    is stretched to image_size, whatever resize says."""
    crop_aspect: tuple[float, float] | None = (0.75, 1.33)
    """Smallest and largest width / height of the crop; None for the image's, as where an image is
    stretched to a size and a part is cut out."""
    flip: bool = True
    """Mirror images left to right, with a probability of one half."""
    shift: Annotated[int, Range("0 or more", 0, math.inf)] = 0
    """Move images by up to this many pixels each way, after resizing. A shift of 4 without crop_area is
    CIFAR's padding by 4 pixels with a random crop."""
    rotate: Annotated[float, Range("from 0 to 180", 0, 180)] = 0.0
    """Turn images by up to this many degrees each way, after resizing."""
    jpeg_scaling: bool = False
    """Decode JPEGs at a half, a quarter or an eighth of their size where the random crop keeps at least the
    image size in pixels: several times as fast for photographs of many megapixels. Pixels differ a little,
    since libjpeg shrinks by its own rule."""
    rand_augment: Annotated[int, Range("from 0 to 14", 0, 14)] = 0
    """Number of RandAugment's 14 operations that change each image after the other changes, usually 1 to 3
    (arXiv 1909.13719); 0 for none. Uncovered pixels get the image's mean colour. For images of 1 or 3
    channels."""
    rand_augment_magnitude: Annotated[float, Range("from 0 to 10", 0, 10)] = 9.0
    """Strength of these operations, from 0 to 10 as in timm (DeiT: 9; less for small images)."""
    random_erasing: Part = 0.0
    """Probability that a box of the image is replaced by noise in the end (arXiv 1708.04896; DeiT: 0.25)."""

    def __post_init__(self) -> None:
        require_valid(self)
        if self.crop_area is not None and not 0 < self.crop_area[0] <= self.crop_area[1] <= 1:
            raise VitkitError(f"crop_area is fractions in (0, 1], smaller first, found {self.crop_area}.")
        if self.crop_aspect is not None and not 0 < self.crop_aspect[0] <= self.crop_aspect[1]:
            raise VitkitError(f"crop_aspect is two positive ratios, smaller first, found {self.crop_aspect}.")


@dataclass(frozen=True)
class Splits:
    """The cutting of splits that the data lacks from its training images."""

    val_fraction: float = 0.1
    """Fraction of all training images, counted before any cut, for validation; 0 for no validation split."""
    test_fraction: float = 0.2
    """Fraction of all training images, counted before any cut, for testing; 0 for no test split."""
    seed: Seed = 0
    """Seed of the cut; the same seed cuts the same images."""
    label_separator: str | None = None
    """Character that separates several labels of an image in a cell of the CSV; left out, ";" or "|",
    whichever the cells hold."""

    levels: bool = False
    """Whether folders in folders are a tree of classes: birds/petrel/1.jpg is of the class birds/petrel and
    not of birds. Class names of a .csv or .parquet then have their levels between slashes too. The model is
    measured by level, and answers at the deepest level that it is sure of. --levels is the same."""
    group: str | None = None
    """Groups of images that stay in one split, such as all of a patient or a scene: the name of a column of
    the CSV or Parquet; for class folders a level below them, 1 for the p7 of cats/p7/1.jpg."""
    folds: Folds | None = None
    """Cut the images into so many parts, one of which is the test split; --splits.fold says which. Every
    class is dealt round them, so that they differ by one image at most, or by the largest group."""
    fold: int | None = None
    """The fold that is the test split, from 0."""
    subset: str | None = None
    """Train on a part of the training images that the cuts leave: 0.1 for a tenth of every class, or a slice
    such as "[:500]" or "[-10%:]". The images are taken in an order that the seed draws and in which every
    class is spread evenly, so that a tenth is within every larger part. --subset is the same."""
    subset_seed: Seed | None = field(default=None, metadata=IN_PYTHON_ALONE)
    """Seed of that order; left out, the seed of the cut. Another seed draws another part of the same training
    images."""

    def __post_init__(self) -> None:
        require_valid(self)
        if self.subset is not None:
            # One way of writing for each selection, so that it is the same run however it is written.
            part = parse_subset(self.subset)
            object.__setattr__(self, "subset", None if part == WHOLE else str(part))
        if (self.fold is None) != (self.folds is None):
            raise VitkitError("fold and folds go together: give both, say --splits.fold 0 --splits.folds 5.")
        if self.fold is not None and self.folds is not None and not 0 <= self.fold < self.folds:
            raise VitkitError(f"fold is from 0 to folds - 1, found {self.fold} of {self.folds}.")
        # 1e-9 for rounding: at 1 - 1 / folds nothing is left to train on.
        if self.folds is not None and self.val_fraction > 1 - 1 / self.folds - 1e-9:
            raise VitkitError(
                f"A test split of one in {self.folds} and a val_fraction of {self.val_fraction} leave "
                "nothing to train on: give a smaller val_fraction."
            )
        if min(self.val_fraction, self.test_fraction) < 0 or self.val_fraction + self.test_fraction >= 1:
            raise VitkitError(
                "val_fraction and test_fraction must be 0 or more and leave something to train on, found "
                f"{self.val_fraction} and {self.test_fraction}."
            )
        if self.label_separator is not None and not self.label_separator.strip("\r\n"):
            raise VitkitError(
                "label_separator must be the text between two labels in a cell, found "
                f"{self.label_separator!r}. Give a character, or leave it out."
            )


DEFAULT_SPLITS = Splits()
WORKER_TIMEOUT = 600.0
"""Default seconds to wait for a batch before the process that loads it is considered stuck."""


@dataclass(frozen=True)
class Loading(Valid):
    """The loading of images; these options do not change the result of training."""

    workers: Annotated[int, Range("0 or more", 0, math.inf)] | None = None
    """Processes that decode images which are not kept in memory; left out, one for each CPU core. With 0 the
    main process decodes."""
    memory_gib: ZeroOrMore = 2.0
    """Size in GiB up to which the decoded images of a split are kept in memory; with 0 they are read from
    disk every time."""
    bad_quota: Part = 0.05
    """Fraction of the training files, from 0 to 1, that may be unreadable before training stops."""
    check_images: Literal["time", "content", "names"] = "time"
    """The property of every image file that must be unchanged when a run is continued. time: its size and
    time of change. content: all of its bytes, which are then read at every start. names: only its name."""
    worker_timeout: ZeroOrMore = WORKER_TIMEOUT
    """Seconds to wait for a batch before the process that loads it is considered stuck, which ends the run; 0
    waits for ever."""

    step_timeout: ZeroOrMore = 600.0
    """Seconds that one of several processes may wait for another in a step, a validation or a save before the
    run ends; 0 waits for a day."""


ProtocolName = Literal[
    "imagenet", "imagenet-real", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch", "objectnet"
]
"""The names of the protocols."""


@dataclass(frozen=True)
class EvaluationProtocol:
    """One test set: how its files lie, and among which classes a model chooses."""

    layout: Literal["class folders", "validation numbers", "objectnet"]
    """class folders: named by WordNet ids, or by the numbers 0 to 999; validation numbers: files named
    ILSVRC2012_val_00000001.JPEG in any folder, and real.json; objectnet: images/ and mappings/."""
    mark: str = ""
    """The letter that marks its classes in `imagenet_classes.txt`, the only ones that the model chooses from;
    empty: it chooses from all 1,000."""
    border: int = 0
    """Pixels at each side of every image that are cut off before anything else."""


PROTOCOLS: dict[ProtocolName, EvaluationProtocol] = {
    "imagenet": EvaluationProtocol("class folders"),
    # google-research/reassessed-imagenet, README.md: any of an image's labels is right; none: left out.
    "imagenet-real": EvaluationProtocol("validation numbers"),
    # modestyachts/ImageNetV2, issue 4: folders are class numbers, which must not be sorted as text.
    "imagenet-v2": EvaluationProtocol("class folders"),
    # hendrycks/natural-adv-examples and imagenet-r, eval.py: the logits of 200 classes.
    "imagenet-a": EvaluationProtocol("class folders", mark="a"),
    "imagenet-r": EvaluationProtocol("class folders", mark="r"),
    "imagenet-sketch": EvaluationProtocol("class folders"),
    # abarbu/objectnet-template-pytorch, objectnet_pytorch_dataloader.py: two pixels of red border. A model
    # chooses among all 1,000 classes; some papers let it choose among ObjectNet's 113 alone.
    "objectnet": EvaluationProtocol("objectnet", border=2),
}
