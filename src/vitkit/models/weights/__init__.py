"""Checkpoints in, checkpoints out: the dialect is found by itself, every key is accounted for."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from vitkit.config import nearest
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.image_config import format_size
from vitkit.models.image_model import ImageModel
from vitkit.models.position import Interpolation, resize_line, resize_position_embedding
from vitkit.models.vit_config import ViTConfig
from vitkit.models.weights import big_vision, huggingface, native, official, timm, torchvision
from vitkit.models.weights.accounting import build, check, translate
from vitkit.models.weights.remote import fetch
from vitkit.models.weights.source import Source, open_source
from vitkit.models.weights.table import Dialect, Hints, Translation
from vitkit.models.zoo import ModelConfig, build_model, name_of

Format = Literal["vitkit", "official", "big_vision", "huggingface", "timm", "torchvision"]

# The first that recognises a file reads it.
DIALECTS = (
    native.DIALECT,
    big_vision.DIALECT,
    official.DIALECT,
    huggingface.DIALECT,
    timm.DIALECT,
    torchvision.DIALECT,
)

_log = logging.getLogger("vitkit")


def load_model(
    path: str | Path,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    head: Literal["keep", "new"] | None = None,
    num_heads: int | None = None,
    interpolation: Interpolation = "original",
) -> ImageModel:
    """A model with the weights of a checkpoint.

    Args:
        path: a run folder, or a file or folder of any layout we know: ours, the original release's, timm's
            and so on; or an address, `hf:org/name`, `https://...`, `gs://...`, which is fetched and kept.
        num_classes: left out, the head stays as it is.
        image_size: left out, the size of the weights. Another one resizes the position embeddings.
        head: "keep" the whole head, the tanh layer with it; or "new", the original's rule for fine-tuning:
            the tanh layer is dropped and the head is a new linear layer of zeros. Left out: kept, unless
            `num_classes` is another number than the file's.
        num_heads: of the attention, where a file does not say it.
        interpolation: how position embeddings are resized.

    Raises:
        VitkitError: no checkpoint there, one of another architecture, or a damaged one.
    """
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    with _opened(path, Hints(size, num_heads)) as (source, identity, translation):
        tensors = translate(source, translation)
    config, card = identity.config, identity.card
    for reason, keys in identity.left_out.items():
        _log.info("%s: left out on purpose, %s: %s", path, reason, ", ".join(keys))
    if num_classes is None:
        num_classes = config.num_classes
    if head == "keep" and num_classes != config.num_classes:
        raise VitkitError(
            f"{path}: its head has {config.num_classes} classes and cannot be kept for {num_classes}: "
            "leave out num_classes, or ask for a new head."
        )
    check(config, tensors, str(path))  # before anything is made to fit
    if head == "new" or (head is None and num_classes != config.num_classes):
        config, tensors = _with_new_head(config, tensors, num_classes)
        # What it was trained on, and how, is said of the head that is gone.
        origin = {key: value for key, value in card.origin.items() if key not in ("loss", "data")}
        card = replace(card, class_names=(), origin=origin)
        _log.info("%s: new zero head for %d classes", path, num_classes)
    elif "head.weight" in tensors and not tensors["head.weight"].any():
        _log.warning(
            "%s: its head is all zeros, so all classes look alike until the model is fine-tuned", path
        )
    if size is not None and size != config.image_size:
        config, tensors = _at_size(config, tensors, size, interpolation, path)
    if "image_size" in card.preprocessing:
        card = replace(card, preprocessing={**card.preprocessing, "image_size": list(config.image_size)})
    model = build(config, tensors, str(path))
    model.card = card
    return model.eval()


@dataclass(frozen=True)
class Identity:
    """What a checkpoint is, without its weights."""

    file: Path
    dialect: str
    config: ModelConfig
    card: ModelCard
    left_out: dict[str, list[str]]
    """Reason -> keys of the file that are not used."""


def identify(
    path: str | Path, image_size: tuple[int, int] | None = None, num_heads: int | None = None
) -> Identity:
    """What a checkpoint is: dialect, architecture, arithmetic, card. The weights stay on the disk.

    Raises:
        VitkitError: as `load_model`.
    """
    with _opened(path, Hints(image_size, num_heads)) as (_source, identity, _translation):
        return identity


@contextmanager
def _opened(path: str | Path, hints: Hints) -> Iterator[tuple[Source, Identity, Translation]]:
    fetched = fetch(path)
    with open_source(fetched.path) as source:
        dialect = next((dialect for dialect in DIALECTS if dialect.recognises(source)), None)
        if dialect is None:
            first = ", ".join(sorted(source.shapes)[:3])
            raise VitkitError(
                f"{source.path} holds no model we know: {len(source.shapes)} tensors (first: {first}). "
                f"Known are the layouts of {', '.join(get_args(Format))}."
            )
        translation = dialect.read(source, hints)
        heads = getattr(translation.config, "num_heads", None)
        if hints.num_heads not in (None, heads):
            raise VitkitError(
                f"{source.path} says that it has {heads} attention heads, not {hints.num_heads}: leave out "
                "num_heads (--num-heads)."
            )
        card = translation.card
        if dialect is not native.DIALECT:
            origin = {"file": source.path.name, "dialect": dialect.name, **fetched.origin, **card.origin}
            card = replace(card, name=card.name or name_of(translation.config), origin=origin)
        elif "source" not in card.origin:
            card = replace(card, origin={**card.origin, **fetched.origin})
        left_out: dict[str, list[str]] = {}
        for key, reason in translation.ignored.items():
            if key in source:
                left_out.setdefault(reason, []).append(key)
        yield source, Identity(source.path, dialect.name, translation.config, card, left_out), translation


def save_model(model: ImageModel, path: str | Path, format: Format = "vitkit") -> Path:
    """Write a model's weights.

    Args:
        model: what to save, with its `card` (class names, preprocessing, origin) where the format has room.
        path: a folder for "vitkit", "timm" and "huggingface"; a file for "official" and "big_vision" (`.npz`
            is added) and "torchvision" (`.pth`). Folders on the way are made, what is there is replaced.
        format: the layout; the guide's table says what each of them is.

    Returns:
        The path written.

    Raises:
        VitkitError: the format has no name for such a model.
    """
    path = Path(path)
    dialect = _dialect(format)
    lacking = dialect.absent(model.config)
    if lacking:
        raise VitkitError(
            f"The {format} layout has no place for {'; '.join(lacking)}. "
            "Choose another, or vitkit's own, which keeps everything."
        )
    names = len(model.card.class_names)
    if names and names != model.config.num_classes:
        raise VitkitError(
            f"model.card has {names} class names for a model of {model.config.num_classes} classes: mend it."
        )
    lost = dialect.unsaid(model.config)
    path.parent.mkdir(parents=True, exist_ok=True)
    written = dialect.write(model, path)
    if lost:
        _log.warning("%s: the %s format cannot say: %s", written, format, "; ".join(lost))
    return written


def absent(config: ModelConfig, format: Format) -> list[str]:
    """What of an architecture a format has no name for, in words; nothing if `save_model` can write it."""
    return _dialect(format).absent(config)


def unsaid(config: ModelConfig, format: Format) -> list[str]:
    """What of a model's arithmetic a format has no place for, in words; nothing if it says everything."""
    return _dialect(format).unsaid(config)


def _dialect(format: Format) -> Dialect:
    dialect = next((dialect for dialect in DIALECTS if dialect.name == format), None)
    if dialect is None:
        names = [dialect.name for dialect in DIALECTS]
        raise VitkitError(f"No format is named '{format}'. {nearest(str(format), names)}")
    return dialect


def _with_new_head(
    config: ModelConfig, tensors: dict[str, Tensor], num_classes: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    config = replace(config, num_classes=num_classes)
    if isinstance(config, ViTConfig):
        config = replace(config, representation_size=None)
    kept = {key: value for key, value in tensors.items() if not key.startswith(("head.", "pre_logits."))}
    if num_classes:
        example = next(iter(tensors.values()))
        kept["head.weight"] = example.new_zeros(num_classes, config.width)
        kept["head.bias"] = example.new_full((num_classes,), config.head_bias_init)
    return config, kept


def _at_size(
    config: ModelConfig,
    tensors: dict[str, Tensor],
    size: tuple[int, int],
    interpolation: Interpolation,
    path: str | Path,
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The same weights for another image size: everything that knows places is resized (paper 3.2)."""
    resized = replace(config, image_size=size)
    with torch.device("meta"):
        expected = {key: value.shape for key, value in build_model(resized).state_dict().items()}
    old, new = (c.grid if isinstance(c, ViTConfig) else c.image_size for c in (config, resized))
    # Two grids may have the same number of places: what stands there is rearranged all the same.
    changed = [
        key for key in tensors if _knows_places(key) and (tensors[key].shape != expected[key] or old != new)
    ]
    lost = [size[i] % resized.token_size[i] for i in (0, 1)] if isinstance(resized, ViTConfig) else [0, 0]
    if any(lost):
        _log.warning(
            "%s: %d rows below and %d columns at the right of the images fill no patch: they are cut off",
            path,
            *lost,
        )
    if not changed:
        return resized, tensors
    tensors = dict(tensors)
    for key in changed:
        if key.endswith(".embedding"):
            assert isinstance(config, ViTConfig) and isinstance(resized, ViTConfig)
            tensors[key] = resize_position_embedding(
                tensors[key],
                resized.grid,
                prefix_tokens=config.prefix_positions,
                old_grid=config.grid,
                interpolation=interpolation,
            )
        else:  # a table of rows, of columns or of relative offsets
            tensors[key] = resize_line(tensors[key], expected[key][0], interpolation)
    _log.warning(
        "%s: position embeddings resized from %s of %s to %s; "
        "expect lower accuracy until the model is fine-tuned at this size",
        path,
        "a grid" if isinstance(config, ViTConfig) else "images",
        format_size(old),
        format_size(new),
    )
    return resized, tensors


def _knows_places(key: str) -> bool:
    """Whether a parameter has a vector for each place: a position embedding, or a table of offsets."""
    return (key.startswith("positions.") and not key.endswith(".prefix")) or "relative" in key
