"""Compute the features of images: each image goes through a model once; features are stored on the disk.

Shapes: N images, n of them readable, D features.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from vitkit.config import to_json
from vitkit.data.config import Preprocessing
from vitkit.data.layouts.repeats import bytes_digest
from vitkit.data.sources import Samples
from vitkit.data.stream.loader import Batch, evaluation_batches
from vitkit.durable import read_regular_file, replace_file
from vitkit.errors import VitkitError
from vitkit.evaluation.run_model import run_model
from vitkit.models.config import ModelConfig, Precision
from vitkit.models.image_model import ImageModel, autocast
from vitkit.world import ALONE, World, prepared_together

CACHE_LIMIT = 4 << 30
"""Bytes of features that are kept on the disk; the files used longest ago make room."""
LAYOUT = 1
"""The version of the cache's files; another layout has another key, so that old files are never read as new
ones."""
_DIGEST = 32  # bytes of SHA-256
_PIXELS = "pixels"
"""The target of a batch that holds the hashes of its images, as int64, which collectives know."""


@dataclass(frozen=True, eq=False)
class Features:
    """The features of images, in the order of their given indices."""

    rows: NDArray[np.float32]
    """`(n, D)`: the input of the head, for each image that could be read."""
    readable: NDArray[np.bool_]
    """`(N,)`: whether an image could be read."""
    pixels: NDArray[np.uint64]
    """`(n, 2)`: XXH3 of the pixels that the model was shown, equal for images with equal pixels."""
    reasons: tuple[str, ...]
    """Why each unreadable image could not be read."""


@dataclass(frozen=True)
class FeatureExtractor:
    """A model, and everything else that its features of an image depend on."""

    model: ImageModel
    """On its device; its mode does not change."""
    preprocessing: Preprocessing
    device: torch.device
    precision: Precision = "auto"
    batch_size: int = 128
    """Images at a time."""
    workers: int = 0
    """Processes that decode images."""

    def fingerprint(self, head: bool = False) -> str:
        """Hash everything except the images that features depend on: weights, arithmetic, preprocessing.

        The batch size is left out, which moves the last digits alone, and so is the head, because features
        come before it, unless the logits are asked for.
        """
        with autocast(self.device, self.precision):
            bfloat16 = torch.is_autocast_enabled(self.device.type)
        facts = {
            "architecture": self.model.config.family,
            "config": {**to_json(self.model.config), "num_classes": 0},
            "preprocessing": to_json(self.preprocessing),
            "arithmetic": [self.device.type, "bfloat16" if bfloat16 else "float32", torch.__version__],
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            if head or not name.startswith("head."):
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def compute(
        self,
        samples: Samples,
        indices: NDArray[np.int64],
        progress: Callable[[int], None] = lambda done: None,
        world: World = ALONE,
    ) -> Features:
        """Run the model over some images of a split once.

        Several processes compute different batches, the same as a single process would make, and all of them
        get the features of all images.

        Args:
            samples: the split.
            indices: `(N,)` of the images. Unreadable ones take part as zeros and are dropped.
            progress: called after each batch with the number of images that are done.
            world: the processes.

        Raises:
            VitkitError: there are no images; the model has no single row of features per image, or features
                that are not finite; a worker does not answer.
        """
        rejects: dict[str, str] = {}
        parts: list[tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.int64]]] = []

        def take(outputs: NDArray[np.float32], batch: Batch) -> None:
            mask = batch.mask.numpy().copy()  # a worker may own its memory
            parts.append((outputs[mask], mask, batch.targets[_PIXELS].numpy()[mask]))
            progress(sum(len(done) for _, done, _ in parts))

        size, device, precision = self.batch_size, self.device, self.precision
        batches = evaluation_batches(
            samples, self.preprocessing, size, self.workers, rejects, indices, world=world
        )
        hashed = _with_hashes(batches)
        run_model(self.model, hashed, take, device=device, precision=precision, features=True, world=world)
        for unreadable in world.gather(rejects):
            rejects.update(unreadable)
        with prepared_together(world):  # all processes meet the same error, and one reports it
            if not parts:
                raise VitkitError("No images to compute features of: the data, or this split, is empty.")
            features, mask, pixels = map(np.concatenate, zip(*parts, strict=True))
            if wrong := int((~np.isfinite(features).all(1)).sum()):
                raise VitkitError(
                    f"The model's features are not finite (NaN or infinite) for {wrong:,} of {len(mask):,} "
                    "images. Its weights have diverged, or overflow in this precision: take another "
                    "checkpoint, or float32."
                )
        reasons = tuple(rejects[samples.key(index)] for index in indices[~mask].tolist())
        return Features(features, mask, pixels.view(np.uint64), reasons)


def _with_hashes(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Give batches the hashes of their images in place of labels: pixels do not go to other processes."""
    for batch in batches:
        shown, hashes = batch.images.numpy(), np.zeros((len(batch), 2), np.uint64)
        for i in np.flatnonzero(batch.mask.numpy()).tolist():
            hashes[i] = divmod(xxhash.xxh3_128_intdigest(shown[i].tobytes()), 1 << 64)
        yield replace(batch, targets={_PIXELS: torch.from_numpy(hashes.view(np.int64))})


def explain_no_features(config: ModelConfig) -> str:
    """Say why a model of this configuration has no features of an image, as a clause after its name; else
    ""."""
    if config.pool == "none":
        return (
            "has no pooling (pool none): it gives features of each token, and none of the image. Choose pool "
            "token, mean or map when the model is made"
        )
    return ""


def content_of(samples: Samples, indices: NDArray[np.int64]) -> str:
    """Hash the bytes of image files, in order; an unreadable file counts as the word "unreadable"."""
    digest = hashlib.sha256()
    for index in indices.tolist():
        content = bytes_digest(samples, index)
        digest.update(b"unreadable" if content is None else content.hex().encode())
    return digest.hexdigest()


class FeatureCache:
    """Features on the disk, each file under a hash of everything its features depend on.

    A file is safetensors after its SHA-256. It is written as a whole or not at all, and checked when it is
    read. Above the limit, the file used longest ago is removed first.

    Args:
        folder: made with the first file.
        limit: bytes of all files together.
        note: called with a sentence where a file cannot be read or written: features are computed again then.
    """

    def __init__(self, folder: Path, note: Callable[[str], None], limit: int = CACHE_LIMIT) -> None:
        self.folder, self.limit, self._note = folder, limit, note

    def read(self, key: str) -> Features | None:
        """Read the features stored under a key; None if there are none or the file is damaged."""
        path = self.folder / f"{key}.features"
        try:
            data = read_regular_file(path, self.limit)
            with suppress(OSError):  # another user's folder, say
                path.touch()  # used now
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                raise ValueError("it is damaged")
            arrays = load_arrays(data[_DIGEST:])
            reasons = tuple(json.loads(arrays["reasons"].tobytes()))
            return Features(arrays["rows"], arrays["readable"].astype(bool), arrays["pixels"], reasons)
        except FileNotFoundError:
            return None
        except (OSError, VitkitError, ValueError, KeyError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            self._note(f"The features kept in {path} cannot be read ({reason}): they are computed again.")
            return None

    def keep(self, key: str, features: Features) -> None:
        """Keep features under a key, and make room for them. A disk that refuses costs no result."""
        rows, readable = np.ascontiguousarray(features.rows), features.readable.astype(np.uint8)
        reasons = np.frombuffer(json.dumps(features.reasons).encode(), np.uint8)
        data = save_arrays(
            {"rows": rows, "readable": readable, "pixels": features.pixels, "reasons": reasons}
        )
        if len(data) + _DIGEST > self.limit:
            size, limit = len(data) / 1e9, self.limit / 1e9
            self._note(f"Features of {size:.1f} GB are not kept: the limit is {limit:.1f} GB.")
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._make_room(len(data) + _DIGEST)
            replace_file(self.folder / f"{key}.features", [hashlib.sha256(data).digest(), data])
        except OSError as error:
            self._note(f"The features are not kept in {self.folder}: {error.strerror or error}.")

    def _make_room(self, needed: int) -> None:
        """Remove the files used longest ago until there is room; temporary files of killed processes too."""
        files: list[tuple[float, int, Path]] = []
        for path in self.folder.glob("*.features*"):
            with suppress(FileNotFoundError):  # another process makes room too
                stat = path.stat()
                files.append((stat.st_mtime, stat.st_size, path))
        total = needed + sum(size for _, size, _ in files)
        removed = 0
        for _, size, path in sorted(files):
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total, removed = total - size, removed + 1
        if removed:
            self._note(
                f"{removed:,} of the files of features in {self.folder} were removed, the ones used longest "
                f"ago, to keep it below {self.limit / 1e9:.1f} GB."
            )


def cached_features(
    fingerprint: str,
    samples: Samples,
    indices: NDArray[np.int64],
    cache: FeatureCache | None,
    compute: Callable[[], Features],
    world: World = ALONE,
) -> Features:
    """Give the features of some images of a split from the cache, or compute and keep them.

    Args:
        fingerprint: of the extractor.
        samples: the split.
        indices: `(N,)` of the images.
        cache: where features are kept; None: nowhere.
        compute: makes them anew.
        world: the processes, which compute them together where one of them has no such features.
    """
    if cache is None:
        return compute()
    key = hashlib.sha256(f"{LAYOUT} {fingerprint} {content_of(samples, indices)}".encode()).hexdigest()
    features = cache.read(key)
    matches = world.gather(features is not None and len(features.readable) == len(indices))
    if features is None or not all(matches):
        features = compute()
        if world.writes:
            cache.keep(key, features)
    return features
