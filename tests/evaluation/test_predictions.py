"""Predictions in memory, in files, and in damaged files."""

import gc
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import nn

from tests.evaluation.reference import reference
from vitkit.data.stream.batch import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation import logits as logits_module
from vitkit.evaluation import npz, predictions
from vitkit.evaluation.classify import classification
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.run_model import predict
from vitkit.models.config.card import LossFunction

COUNT, CLASSES = 37, 7
NAMES = [f"class {i}" for i in range(CLASSES)]


@pytest.fixture
def _on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory were for five rows, and a part were two."""
    monkeypatch.setattr(logits_module, "IN_MEMORY", 5 * 4 * CLASSES)
    monkeypatch.setattr(predictions, "IN_MEMORY", 5 * 4 * CLASSES)
    monkeypatch.setattr(npz, "PART", 2 * CLASSES)


def table() -> torch.Tensor:
    made = torch.randn(COUNT, CLASSES, generator=torch.Generator().manual_seed(0)) * 3
    made[3] = made[4, 0]  # equal logits
    return made


class Table(nn.Module):
    """Looks its logits up by the image's first pixel."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return table()[images[:, 0, 0, 0].long()]


def batches(size: int, shuffled: bool, unreadable: tuple[int, ...] = ()) -> list[Batch]:
    order = np.random.default_rng(1).permutation(COUNT) if shuffled else np.arange(COUNT)
    made = []
    for start in range(0, COUNT, size):
        ids = torch.from_numpy(order[start : start + size])
        images = ids.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        made.append(
            Batch(images, {"labels": ids % CLASSES}, torch.tensor([i not in unreadable for i in ids]), ids)
        )
    return made


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("size", [1, 4, COUNT])
@pytest.mark.parametrize("memory", ["memory", "disk"])
def test_the_numbers_are_exactly_the_slow_ones(
    loss: LossFunction, shuffled: bool, size: int, memory: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if memory == "disk":
        request.getfixturevalue("_on_disk")
    unreadable = (2, 30)
    kept = [i for i in range(COUNT) if i not in unreadable]
    rows, labels = table().numpy()[kept], [i % CLASSES for i in kept]
    made = predict(Table(), batches(size, shuffled, unreadable), loss=loss, folder=tmp_path)
    expected = reference(rows, labels, NAMES, bad=2, loss=loss)
    assert classification(made, NAMES) == expected
    assert (made.logits == rows).all() and made.ids.tolist() == kept and made.bad.tolist() == [2, 30]
    made.save(tmp_path / "test.npz")
    loaded = Predictions.load(tmp_path / "test.npz", loss)
    assert classification(loaded, NAMES) == expected
    assert (loaded.logits == rows).all() and (loaded.ids == made.ids).all()
    assert list(tmp_path.iterdir()) == [tmp_path / "test.npz"]  # the file of logits has no name
    without = predict(Table(), batches(size, shuffled, unreadable), loss=loss, keep_logits=False)
    assert classification(without, NAMES) == expected
    with pytest.raises(VitkitError, match="not kept"):
        _ = without.logits


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("_on_disk")
def test_the_file_of_logits_is_closed_with_the_predictions() -> None:
    gc.collect()  # what earlier tests left open is not counted
    before = descriptors()
    made = predict(Table(), batches(4, False))
    rows = made.logits
    assert isinstance(rows, np.memmap) and not rows.flags.writeable
    assert descriptors() > before
    del made, rows
    gc.collect()
    assert descriptors() == before


@pytest.mark.usefixtures("_on_disk")
def test_a_full_disk_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.BytesIO):
        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.SpooledTemporaryFile", lambda **options: Full())
    with pytest.raises(VitkitError, match=r"No space left on device.*28 bytes for each image.*TMPDIR"):
        predict(Table(), batches(4, False))


def saved(path: Path) -> bytes:
    predict(Table(), batches(4, False, (2, 30))).save(path)
    return path.read_bytes()


def test_the_file_is_one_that_numpy_reads(tmp_path: Path) -> None:
    """Also the reader of earlier versions did it so."""
    saved(tmp_path / "test.npz")
    with np.load(tmp_path / "test.npz", allow_pickle=False) as arrays:
        assert {name: (array.dtype, array.shape) for name, array in arrays.items()} == {
            "logits": (np.float32, (COUNT - 2, CLASSES)),
            "labels": (np.int64, (COUNT - 2,)),
            "ids": (np.int64, (COUNT - 2,)),
            "bad": (np.int64, (2,)),
        }


def test_files_of_earlier_versions_are_read(tmp_path: Path) -> None:
    made = predict(Table(), batches(4, False, (2,)))
    np.savez(tmp_path / "old.npz", logits=made.logits, labels=made.labels, ids=made.ids, bad=made.bad)
    loaded = Predictions.load(tmp_path / "old.npz")
    assert classification(loaded, NAMES) == classification(made, NAMES)


def arrays(**changes: object) -> dict[str, NDArray[np.generic]]:
    usual = {"logits": np.zeros((2, 3), np.float32), "labels": [0, 2], "ids": [0, 1], "bad": [2]}
    return {name: np.asarray(value) for name, value in (usual | changes).items()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": [0, 3]}, "a label 3 of 3 classes"),
        ({"labels": [0, -1]}, "labels from -1 to 0"),
        ({"ids": [0, 0]}, "twice"),
        ({"ids": [0, 2]}, "twice"),
        ({"ids": [-1, 0]}, "ids from -1"),
        ({"ids": [0, 2**63 - 1]}, "ids from 0"),
        ({"ids": [0.0, 1.0]}, "not integers"),
        ({"labels": [[0, 2]]}, "not integers"),
        ({"labels": [0]}, "expected logits"),
        ({"bad": [True]}, "not integers"),
        ({"logits": np.zeros((2, 3), int)}, "not floats"),
        ({"logits": np.zeros(2)}, "expected logits"),
        ({"logits": np.zeros((2, 0))}, "a label 2 of 0 classes"),
        ({"logits": np.array([[0, np.nan, 0]] * 2)}, "not finite"),
        ({"logits": np.full((2, 3), 1e300)}, "not finite"),
        ({"logits": np.asfortranarray(np.zeros((2, 3)))}, "column-major"),
        ({"logits": np.array([["a", "b", "c"]] * 2)}, "not floats"),
    ],
)
def test_arrays_that_cannot_be_predictions(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    path = tmp_path / "test.npz"
    np.savez(path, **arrays(**changes))  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match=words) as caught:
        Predictions.load(path)
    assert str(path) in str(caught.value) and "Run the evaluation again" in str(caught.value)


def test_archives_that_cannot_be_predictions(tmp_path: Path) -> None:
    path = tmp_path / "test.npz"
    np.savez_compressed(path, **arrays())  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match="compressed"):  # it may be larger than any disk
        Predictions.load(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(VitkitError, match="no regular file"):
        Predictions.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(VitkitError, match="no regular file"):
        Predictions.load(path)
    path.rmdir()
    path.symlink_to(path)
    with pytest.raises(VitkitError, match="cannot be read"):
        Predictions.load(path)


@pytest.mark.parametrize(("name", "shape"), [("labels", (10**12,)), ("logits", (10**12, 3))])
def test_an_array_that_claims_more_than_its_file_holds(
    tmp_path: Path, name: str, shape: tuple[int, ...]
) -> None:
    """The header alone is read, so that nobody's claim takes memory."""
    header = io.BytesIO()
    kind = np.dtype(np.int64 if name == "labels" else np.float32)
    description = npy.dtype_to_descr(kind)
    npy.write_array_header_1_0(header, {"descr": description, "fortran_order": False, "shape": shape})
    saved(tmp_path / "whole.npz")
    with (
        zipfile.ZipFile(tmp_path / "whole.npz") as whole,
        zipfile.ZipFile(tmp_path / "test.npz", "w") as file,
    ):
        for member in whole.namelist():
            content = header.getvalue() + bytes(24) if member == f"{name}.npy" else whole.read(member)
            file.writestr(member, content)
    with pytest.raises(VitkitError, match=rf"{name}\.npy is shorter than its header says"):
        Predictions.load(tmp_path / "test.npz")


@pytest.mark.usefixtures("_on_disk")
def test_a_file_that_changes_after_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "test.npz"
    whole = saved(path)
    loaded = Predictions.load(path)
    flipped = bytearray(whole)
    flipped[300] ^= 1  # among the logits: the checksum tells
    path.write_bytes(flipped)
    with pytest.raises(VitkitError, match="found something else"):
        _ = loaded.logits
    np.savez(path, **arrays())  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match="has changed"):
        _ = loaded.logits


def mutant(whole: bytes, draw: np.random.Generator) -> bytes:
    """The file with some damage, half of it in the archive's own lists and the arrays' headers."""
    content = bytearray(whole)
    for _ in range(int(draw.integers(1, 4))):
        headers = [i for i in range(len(content) - 3) if content[i : i + 2] == b"PK"]
        start = int(draw.choice(headers)) if headers and draw.random() < 0.5 else 0
        end = min(start + 180, len(content)) if start else len(content)
        place = int(draw.integers(start, end)) if end > start else 0
        match int(draw.integers(5)):
            case 0:
                content[place : place + 1] = bytes([int(draw.integers(256))])
            case 1:
                content[place : place + 1] = bytes([content[place] ^ (1 << int(draw.integers(8)))])
            case 2:
                del content[place : place + int(draw.integers(1, 40))]
            case 3:
                content[place:place] = bytes(draw.integers(0, 256, int(draw.integers(1, 20))).tolist())
            case _:
                number = (0, 1, 2**31, 2**63, 2**64 - 1)[draw.integers(5)]
                content[place : place + 8] = number.to_bytes(8, "little")
        if not content:
            break
    return bytes(content)


def with_checksums(content: bytes, draw: np.random.Generator) -> bytes:
    """Damaged arrays in an archive whose checksums are right."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as read, zipfile.ZipFile(made, "w") as written:
        for name in read.namelist():
            part = bytearray(read.read(name))
            for _ in range(int(draw.integers(0, 3))):
                part[int(draw.integers(min(len(part), 200)))] = int(draw.integers(256))
            written.writestr(name, bytes(part))
    return made.getvalue()


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_any_damage_is_a_message(tmp_path: Path, count: int) -> None:
    path = tmp_path / "test.npz"
    whole = saved(path)
    draw, refused = np.random.default_rng(count), 0
    for number in range(count):
        path.write_bytes(with_checksums(whole, draw) if number % 3 == 0 else mutant(whole, draw))
        try:
            loaded = Predictions.load(path)
            classification(loaded, [str(i) for i in range(loaded.classes)])
            assert np.isfinite(loaded.logits).all()
        except VitkitError:
            refused += 1
    assert refused > 0.6 * count
