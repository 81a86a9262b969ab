"""The published checkpoints that can be begun from by a short name, with their exact addresses.

`published.csv` has a line for each, with its address. An address is listed only if a public file names it;
`SOURCES` lists these files. Commits and hashes are filled in by `scripts/pin-starts`. It needs no
torch.
"""

import csv
import difflib
import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitkit.errors import VitkitError
from vitkit.models.zoo import name_here, same_letters
from vitkit.weights.model_card import ModelCard

SOURCES = {
    "timm": "the pretrained configurations of timm 1.0.31 (huggingface/pytorch-image-models, timm/models)",
    "cards": "the model cards and file lists of that address on huggingface.co",
    "vit_jax": "google-research/vision_transformer at c6de1e5, vit_jax.ipynb, which lists the bucket",
    "big_vision": "google-research/big_vision at 0127fb6, models/vit.py, VANITY_NAMES; README.md, License",
    "big_transfer": "google-research/big_transfer at 140de6e, README.md",
    "timm_results": "huggingface/pytorch-image-models at aa4b585, results/results-imagenet.csv",
    "clip": "openai/CLIP at b1c4b6b, LICENSE",
    "dino": "facebookresearch/dino at 00e1bcc, README.md",
    "dinov2": "facebookresearch/dinov2 at 04b9100, README.md",
    "dinov3": "facebookresearch/dinov3, issue 145: the publisher's files are gated, timm's copies are not",
    "lingbot": "huggingface/pytorch-image-models, pull request 2730",
    "mae": "facebookresearch/mae at 2f170f2, FINETUNE.md",
    "siglip2": "google-research/big_vision at 1659d42, configs/proj/image_text/README_siglip2.md",
}
"""Public files that name the addresses, sizes, classes, licences and accuracies."""

DEFAULT_MODELS = ("ViT-Ti/16", "ViT-S/16", "ViT-B/16")
"""The models of default starts, the smallest first: one machine can fine-tune each of them."""
DEFAULT_TRAINING, DEFAULT_DATA, DEFAULT_SIDE = "AugReg", "ImageNet-21k", 224
"""The training of default starts: one for all sizes, so that they differ in size alone. Pre-training on
ImageNet-21k transfers better than on ImageNet-1k (arXiv 2106.10270, section 4.3; the paper's Table 5)."""
FREE_LICENCES = ("Apache-2.0", "MIT")
"""Licences under which weights may be used for any purpose: a start that vitkit chooses has one of them."""
LICENCE_TERMS = dict.fromkeys(FREE_LICENCES, "commercial use allowed") | {
    "CC-BY-NC-4.0": "no commercial use",
    "DINOv3 License": "Meta's own terms, read them before you use it",
}
"""The terms of a licence that a person needs to know first."""
TRAINING_IMAGES = "training_images"
"""The key of a card's origin: images of the training split, of a model that began with new weights."""
SETS = {"ImageNet-1k": 1_281_167, "ImageNet-21k": 14_000_000, "JFT-300M": 303_000_000}
"""Images of the sets that published checkpoints were pre-trained on: ImageNet's training list, and the others
as the paper rounds them (4.1)."""
NEAR_SHOWN = 4
"""Similar names in a message, at the most."""


@dataclass(frozen=True)
class PublishedStart:
    """A published checkpoint that a run can begin from, or that is used as it is."""

    name: str
    """The short name, as `vitkit starts` lists it."""
    model: str
    """The model's name in the grammar of `vitkit models`."""
    training: str
    """The recipe or paper of its training."""
    data: str
    """The sets of images that it was trained on, in that order."""
    image_size: int
    """Height and width of its images in pixels; a BiT ResNet takes any: the size of its usual
    evaluation."""
    classes: int
    """Outputs of its head; 0: it has none."""
    parameters: int
    """Number of parameters with the head; of a model with two towers, the image tower's."""
    original_mib: int | None
    """MiB of the original file, where its publisher says it; the copy that is fetched may differ."""
    gflops: float
    """GFLOPs of the forward pass of one image with the head; a multiply-add is two."""
    licence: str
    gate: str
    """Who asks for what before the publisher's own files are fetched, as a clause; "" where nobody does."""
    free: str
    """The name of a start of about this size with a free licence, beside one without; else ""."""
    accuracy: float | None
    """Published top-1 accuracy on ImageNet-1k in per cent; None where no source of `SOURCES` has one."""
    accuracy_by: str
    """How it was measured: own head, linear (a probe), fine-tuned (another file), zero-shot."""
    accuracy_source: str
    """The public file of `SOURCES` that has the accuracy; "" where there is none."""
    source: tuple[str, ...]
    """Keys of `SOURCES`."""
    addresses: tuple[str, ...]
    """Where the weights are published: the first is fetched, the others are named when that fails."""
    revision: str
    """The commit of the first address, if it is one of the Hub; "" where it is not pinned."""
    sha256: str
    """SHA-256 of the file of weights at the first address; "" where it is not pinned."""

    @property
    def address(self) -> str:
        """The address that is fetched, without its commit and SHA-256."""
        return self.addresses[0]

    @property
    def other_addresses(self) -> tuple[str, ...]:
        """The addresses besides the first from which the weights can be fetched."""
        # gs:// is how the publisher names them: the authors' bucket is closed, the others have https:// here.
        return tuple(address for address in self.addresses[1:] if not address.startswith("gs:"))

    @property
    def megabytes(self) -> float:
        """The size of its weights in MB, as every publisher stores them: float32, 4 bytes a parameter."""
        return self.parameters * 4 / 1e6

    @property
    def terms(self) -> str:
        """Describe the licence: "Apache-2.0 (commercial use allowed)"."""
        return self.licence + (f" ({LICENCE_TERMS[self.licence]})" if self.licence in LICENCE_TERMS else "")

    @property
    def is_pinned(self) -> bool:
        """Whether its SHA-256 is in the table, and for a model of the Hub its commit too."""
        return bool(self.sha256 and (self.revision or not self.address.startswith("hf:")))

    @property
    def pinned_address(self) -> str:
        """The address with the commit and the SHA-256 in the table: fetching refuses any other file."""
        commit = f"@{self.revision}" if self.revision else ""
        return f"{self.address}{commit}" + (f"#sha256={self.sha256}" if self.sha256 else "")


def starts(*patterns: str, model: str | None = None, data: str | None = None) -> tuple[PublishedStart, ...]:
    """List published checkpoints, which every function and command takes by name in place of a path.

    Args:
        patterns: short names, or patterns such as 'vit-b16*'; left out, all are listed.
        model: a model of vitkit models, or a pattern: ViT-B/16, 'BiT-*'.
        data: the images that it was trained on: imagenet-21k, imagenet-1k, 'imagenet-21k, imagenet-1k',
            webli; where no checkpoint has exactly this name, a part of the name.

    Raises:
        VitkitError: no published checkpoint matches a pattern, the model or the data.
    """
    listed = table()
    names = [start.name for start in listed]
    matches = {pattern: fnmatch.filter(names, pattern.lower()) for pattern in patterns}
    for pattern in patterns:
        if not matches[pattern]:
            near = ", ".join(_near(pattern.lower()))
            hint = f"Near it: {near}." if near else "All are listed by vitkit starts."
            raise VitkitError(f"No published checkpoint is named '{pattern}'. {hint}")
    if patterns:
        listed = tuple(start for start in listed if any(start.name in group for group in matches.values()))
    if model is not None:
        models = [start.model for start in listed if fnmatch.fnmatch(start.model.lower(), model.lower())]
        listed = _with_values("model", listed, model, models)
    if data is not None:
        sets, letters = {start.data for start in listed}, _letters(data)
        exact = [name for name in sets if _letters(name) == letters]
        matching = exact or [name for name in sets if letters in _letters(name)]
        listed = _with_values("data", listed, data, matching)
    return listed


def default_starts() -> tuple[PublishedStart, ...]:
    """List the published checkpoints for a run that names no start, the smallest first."""
    candidates = [
        start
        for start in table()
        if (start.training, start.data, start.image_size) == (DEFAULT_TRAINING, DEFAULT_DATA, DEFAULT_SIDE)
        and start.model in DEFAULT_MODELS
        and start.licence in FREE_LICENCES
    ]
    return tuple(sorted(candidates, key=lambda start: start.parameters))


def find_start_named(path: str | Path) -> PublishedStart | None:
    """Find the published checkpoint of this name; None where there is none, or a file of that name here."""
    return next((start for start in table() if start.name == str(path) and not Path(path).exists()), None)


def missing_checkpoint(path: Path) -> VitkitError:
    """Make the error for a path without a checkpoint, with the published checkpoints that may be meant."""
    near = near_published(path)
    hub = re.fullmatch(r"(?!vit|bit|resnet)[\w-]+/[\w.-]+", str(path), re.IGNORECASE)
    hint = f" On the hub it may be hf:{path}." if hub and not path.parent.exists() else ""
    # A model of timm, with the tag of its weights.
    if not near and re.fullmatch(r"\w+_patch\w+\.\w+", str(path)):
        hint = f" On the hub it may be hf:timm/{path}."
    return VitkitError(f"No checkpoint at {path}.{near}{hint}")


def near_published(path: Path) -> str:
    """Return a sentence with the published checkpoints that a path may have meant; "" if there are none."""
    written = f"{path.parent.name}/{path.name}".removeprefix("/")
    models = {start.model for start in table()}
    same = [written] if written in models else same_letters(written, sorted(models))
    translated = name_here(str(path))
    model = same[0] if len(same) == 1 else translated if translated in models else None
    near = _near(path.name.lower())
    if model is not None and not any(name.startswith(written) for name in near):
        what = "is the name of a model" if model == written else f"is the model {model} here"
        return f" {written} {what}: vitkit starts --model {model} lists its checkpoints."
    return f" Published checkpoints of a name like that: {', '.join(near)} (vitkit starts)." if near else ""


def is_address(path: str | Path) -> bool:
    """Whether a checkpoint is fetched from somewhere: hf:org/name, https://..., a name of `vitkit starts`."""
    # One slash, because pathlib leaves one of two. A file of that name on this machine goes first.
    if re.match(r"hf:|[A-Za-z][\w+.-]+:/", str(path)):
        return not Path(path).exists()
    return find_start_named(path) is not None


@cache
def table() -> tuple[PublishedStart, ...]:
    """Read `published.csv`, once."""
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {key: tuple(row[key].split()) for key in ("source", "addresses")}
        row |= {key: int(row[key]) for key in ("image_size", "classes", "parameters")}
        row["original_mib"] = int(row["original_mib"]) if row["original_mib"] else None
        row["gflops"] = float(row["gflops"])
        row["accuracy"] = float(row["accuracy"]) if row["accuracy"] else None
        row["accuracy_source"] = row["accuracy_source"] and SOURCES[row["accuracy_source"]]
    return tuple(PublishedStart(**row) for row in rows)


def _with_values(
    column: str, listed: Sequence[PublishedStart], pattern: str, values: Sequence[str]
) -> tuple[PublishedStart, ...]:
    """Return the starts with one of the values in a column; an error where there are no values."""
    if not values:
        all_values = dict.fromkeys(getattr(start, column) for start in listed)
        names = "; ".join(all_values)
        raise VitkitError(f"No published checkpoint has the {column} '{pattern}'. Known: {names}.")
    return tuple(start for start in listed if getattr(start, column) in values)


def _letters(text: str) -> str:
    """Reduce a text to letters and digits, so that imagenet21k is ImageNet-21k."""
    return re.sub("[^a-z0-9]", "", text.lower())


def _near(name: str) -> list[str]:
    names = [start.name for start in table()]
    longer = [other for other in names if len(name) > 4 and other.startswith(name)]
    return (longer or difflib.get_close_matches(name, names, NEAR_SHOWN, 0.75))[:NEAR_SHOWN]


def pretraining_images(start: str | Path, card: ModelCard) -> int | None:
    """Return the number of images that a model was pre-trained on; None where nothing records it.

    The card of a fine-tuned model records its start.

    Args:
        start: the path, the address or the name that the model was loaded by.
        card: its card.
    """
    for origin, published in _ancestors(start, card):
        if isinstance(number := origin.get(TRAINING_IMAGES), int):
            return number
        if published is not None:
            return SETS.get(published.data.partition(",")[0])
    return None


def describe_origin_licence(start: str | Path, card: ModelCard) -> str:
    """Describe the licence of the published checkpoint that a model is or began from, however many runs ago,
    and name that; "" where none is on record.

    Args:
        start: the path, the address or the name that the model was loaded by.
        card: its card.
    """
    published = (each for _, each in _ancestors(start, card) if each is not None)
    return next((f"{each.terms}, of {each.name}" for each in published), "")


def _ancestors(
    start: str | Path, card: ModelCard
) -> Iterator[tuple[Mapping[str, Any], PublishedStart | None]]:
    """Yield a model, its start, and the start's start: the origin of each, and the published checkpoint that
    has its name, or its address with or without a commit."""
    named: list[tuple[str, Mapping[str, Any]]] = [(str(start), {})]
    origin: Any = card.origin
    while isinstance(origin, Mapping):
        named += [(str(origin.get("from", "")), origin), (str(origin.get("source", "")), {})]
        origin = origin.get("start")
    for name, origin in named:
        name = re.split(r"[@#]|, put by hand", name)[0]
        by_address = (checkpoint for checkpoint in table() if name in checkpoint.addresses)
        yield origin, find_start_named(name) or next(by_address, None)
