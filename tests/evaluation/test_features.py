"""Features of images: right, once, and found again on the disk by what they were computed from."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

import vitkit
from tests.helpers.photos import noise_image
from tests.helpers.refusals import refused
from vitkit.data.config import Preprocessing, Splits
from vitkit.data.sources import ImageData, open_data
from vitkit.data.transforms import preprocess
from vitkit.evaluation.features import (
    FeatureCache,
    FeatureExtractor,
    Features,
    cached_features,
    content_of,
    explain_no_features,
)
from vitkit.models.config import ViTConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import model_config

CPU = torch.device("cpu")
SIZE, STORED = (8, 16), (12, 20)


@pytest.fixture
def data(tmp_path: Path) -> ImageData:
    """Ten images of two classes; `b/2.png` cannot be read, `b/3.png` is `a/0.png`."""
    for name in ("a", "b"):
        for number in range(5):
            noise_image(tmp_path / "images" / name / f"{number}.png", number + 10 * (name == "b"), STORED)
    (tmp_path / "images" / "b" / "2.png").write_bytes(b"no image")
    noise_image(tmp_path / "images" / "b" / "3.png", 0, STORED)
    return open_data(str(tmp_path / "images"), Splits(0, 0))


def _model(seed: int = 0, name: str = "ViT-16x1x2/4", num_classes: int = 0) -> ImageModel:
    model = vitkit.create_model(name, num_classes=num_classes, image_size=SIZE)
    model.init_weights(torch.Generator().manual_seed(seed))
    return model


def _extractor(model: ImageModel | None = None) -> FeatureExtractor:
    return FeatureExtractor(model or _model(), Preprocessing(SIZE), CPU, "float32")


@pytest.mark.parametrize("workers", [0, 2])
def test_features_are_those_of_each_image_alone(data: ImageData, workers: int) -> None:
    samples = data.splits["train"]
    extractor = replace(_extractor(_model().train()), batch_size=3, workers=workers)
    heard: list[int] = []
    features = extractor.compute(samples, np.arange(10), heard.append)
    assert heard == [3, 6, 9, 10]
    assert features.readable.tolist() == [i != 7 for i in range(10)]
    assert len(features.reasons) == 1 and "image" in features.reasons[0]
    assert features.rows.dtype == np.float32
    assert extractor.model.training
    with torch.inference_mode():
        for row, index in zip(features.rows, np.flatnonzero(features.readable).tolist(), strict=True):
            pixels = preprocess(samples.decode(index), extractor.preprocessing)
            alone = _model().eval().features(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
            np.testing.assert_allclose(row, alone[0].numpy(), rtol=0, atol=2e-6)  # sums in another order
    assert features.pixels[0].tolist() == features.pixels[7].tolist()  # b/3.png, after the file left out
    assert len({tuple(digest) for digest in features.pixels.tolist()}) == 8


def test_features_in_bfloat16_are_float32_numbers_and_others_are_refused(data: ImageData) -> None:
    samples = data.splits["train"]
    exact = _extractor().compute(samples, np.arange(5)).rows
    rounded = replace(_extractor(), precision="bfloat16").compute(samples, np.arange(5)).rows
    assert rounded.dtype == np.float32
    assert 0 < np.abs(exact - rounded).max() < 0.1
    model = _model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    refused("not finite", _extractor(model).compute, samples, np.arange(5))


def test_a_model_without_pooling_has_no_features() -> None:
    config = model_config("ViT-16x1x2/4", 2, SIZE)
    assert isinstance(config, ViTConfig)
    config = replace(config, pool="none")
    assert "pool none" in explain_no_features(config)
    assert not explain_no_features(model_config("ViT-16x1x2/4", 0, SIZE))
    assert not explain_no_features(model_config("BiT-R50x1", 0, (32, 32)))


def test_a_fingerprint_knows_weights_preprocessing_and_arithmetic_but_not_the_head() -> None:
    fingerprint = _extractor().fingerprint()
    assert fingerprint == _extractor().fingerprint()
    others = [
        _extractor(_model(1)),
        replace(_extractor(), preprocessing=Preprocessing(SIZE, resize="crop")),
        replace(_extractor(), precision="bfloat16"),
        _extractor(_model(name="ViT-16x1x4/4")),  # the same weights, attended by other heads
    ]
    changed = _model()
    with torch.no_grad():
        next(changed.parameters()).view(-1)[0] += 1e-6
    assert len({fingerprint, *(other.fingerprint() for other in [*others, _extractor(changed)])}) == 6
    model, other = _model(num_classes=3), _model(num_classes=3)
    with torch.no_grad():
        other.get_parameter("head.weight").fill_(1.0)
    assert _extractor(model).fingerprint() == _extractor(other).fingerprint()


def test_content_is_that_of_the_files(data: ImageData, tmp_path: Path) -> None:
    samples, every = data.splits["train"], np.arange(10)
    contents = [content_of(samples, rows) for rows in (every, every, every[::-1].copy(), every[:9])]
    noise_image(tmp_path / "images" / "a" / "4.png", 77, STORED)
    contents.append(content_of(samples, every))
    (tmp_path / "images" / "a" / "4.png").unlink()
    contents.append(content_of(samples, every))
    assert contents[0] == contents[1] and len({*contents}) == 5


class _Cached:
    """Features of ten images from a cache, and how often they were computed."""

    def __init__(self, data: ImageData, folder: Path) -> None:
        self.samples, self.times, self.notes = data.splits["train"], 0, list[str]()
        self.cache = FeatureCache(folder, self.notes.append)

    def compute(self) -> Features:
        self.times += 1
        return _extractor().compute(self.samples, np.arange(10))

    def get(self, model: str = "model") -> tuple[object, ...]:
        """Every bit of them."""
        features = cached_features(model, self.samples, np.arange(10), self.cache, self.compute)
        arrays = (features.rows, features.readable, features.pixels)
        return (*((array.dtype, array.shape, array.tobytes()) for array in arrays), features.reasons)


def test_what_was_kept_is_the_same_bits_and_what_is_damaged_is_computed_again(
    data: ImageData, tmp_path: Path
) -> None:
    cached = _Cached(data, tmp_path / "cache" / "features")
    first = cached.get()
    assert cached.get() == first and cached.times == 1 and not cached.notes
    (entry,) = (tmp_path / "cache" / "features").iterdir()
    whole = entry.read_bytes()
    assert whole[:32] == hashlib.sha256(whole[32:]).digest()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for number, damaged in enumerate((whole[:-3], flipped, b"", None), 1):
        entry.unlink()
        if damaged is None:
            os.mkfifo(entry)
        else:
            entry.write_bytes(damaged)
        assert cached.get() == first and entry.read_bytes() == whole  # mended
        assert cached.times == 1 + number == 1 + len(cached.notes)
        assert "computed again" in cached.notes[-1] and str(entry) in cached.notes[-1]
    content = save(GOOD)  # of two images, with the right hash
    entry.write_bytes(hashlib.sha256(content).digest() + content)
    assert cached.get() == first and cached.times == 6
    cached.get("another model")
    assert cached.times == 7
    noise_image(tmp_path / "images" / "a" / "1.png", 99, STORED)
    assert cached.get() != first and cached.times == 8
    (tmp_path / "file").write_text("no folder")  # a disk that refuses costs no result
    refused = _Cached(data, tmp_path / "file" / "features")
    assert refused.get() == cached.get() and "not kept" in refused.notes[-1]


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    notes: list[str] = []
    features = Features(np.ones((10, 100), np.float32), np.ones(10, bool), np.zeros((10, 2), np.uint64), ())
    FeatureCache(tmp_path, notes.append).keep("a", features)
    size = (tmp_path / "a.features").stat().st_size
    cache = FeatureCache(tmp_path, notes.append, limit=3 * size)
    (tmp_path / ".old.features.123.tmp").write_bytes(b"x")  # of a process that was killed
    os.utime(tmp_path / ".old.features.123.tmp", (1, 1))
    for age, name in enumerate(("b", "c")):
        cache.keep(name, features)
        os.utime(tmp_path / f"{name}.features", (100 + age, 100 + age))
    os.utime(tmp_path / "a.features", (2, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.features", "b.features", "c.features"]
    assert cache.read("a") is not None  # used now
    cache.keep("d", features)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.features", "c.features", "d.features"]
    assert all("were removed" in note and "to keep it below" in note for note in notes)
    small = FeatureCache(tmp_path, notes.append, limit=size - 1)
    small.keep("e", features)
    assert "are not kept" in notes[-1]
    assert not (tmp_path / "e.features").exists()


GOOD: dict[str, NDArray[Any]] = {
    "rows": np.ones((1, 3), np.float32),
    "readable": np.array([1, 0], np.uint8),
    "pixels": np.zeros((1, 2), np.uint64),
    "reasons": np.frombuffer(b'["lost"]', np.uint8),
}


def test_an_entry_with_something_else_in_it_is_not_read(tmp_path: Path) -> None:
    """As another program, or another version, may have left it under a key of ours, with the right hash."""
    without = {name: value for name, value in GOOD.items() if name != "rows"}
    wrong = [save(without), save(GOOD | {"reasons": np.frombuffer(b"\xff", np.uint8)}), b"no arrays"]
    notes = list[str]()
    cache = FeatureCache(tmp_path, notes.append)
    for number, content in enumerate([save(GOOD), *wrong]):
        (tmp_path / f"{number}.features").write_bytes(hashlib.sha256(content).digest() + content)
        assert (cache.read(str(number)) is None) == (number > 0), number
    assert len(notes) == len(wrong) and all("computed again" in note for note in notes)
