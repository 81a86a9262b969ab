"""Predictions in memory, in files, and in damaged files."""

import gc
import io
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray

from tests.evaluation.answers import Table, batches, names
from tests.evaluation.reference import require_alike
from tests.faults.mutate import mutant
from tests.helpers.refusals import refused
from vitkit.errors import VitkitError
from vitkit.evaluation import predictions, run_model
from vitkit.evaluation.classify import classification
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.run_model import predict
from vitkit.models.config import LossFunction

COUNT, CLASSES = 37, 7
NAMES = names(CLASSES)


@pytest.fixture
def _on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if memory were for five rows, and a part were two."""
    monkeypatch.setattr(run_model, "IN_MEMORY", 5 * 4 * CLASSES)
    monkeypatch.setattr(predictions, "IN_MEMORY", 5 * 4 * CLASSES)
    monkeypatch.setattr(predictions, "PART", 2 * CLASSES)


def table() -> torch.Tensor:
    made = torch.randn(COUNT, CLASSES, generator=torch.Generator().manual_seed(0)) * 3
    made[3] = made[4, 0]  # equal logits
    return made


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("size", [1, 4, COUNT])
@pytest.mark.parametrize("memory", ["memory", "disk"])
def test_the_numbers_are_the_slow_ones_however_they_were_batched(
    loss: LossFunction, shuffled: bool, size: int, memory: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if memory == "disk":
        request.getfixturevalue("_on_disk")
    unreadable = (2, 30)
    readable = [i for i in range(COUNT) if i not in unreadable]
    rows, labels = table().numpy()[readable], np.array(readable) % CLASSES
    made = predict_table(size, shuffled, unreadable, loss=loss, folder=tmp_path)
    # To the last bit: all at once, in order, in memory.
    expected = classification(
        Predictions(rows, labels, np.array(readable), np.array(unreadable), loss), NAMES
    )
    require_alike(expected, rows, labels, loss)
    assert classification(made, NAMES) == expected and expected.bad == 2
    assert (made.logits == rows).all() and made.ids.tolist() == readable and made.bad.tolist() == [2, 30]
    made.save(tmp_path / "test.json")
    loaded = Predictions.load(tmp_path / "test.json", loss)
    assert classification(loaded, NAMES) == expected
    assert (loaded.logits == rows).all() and (loaded.ids == made.ids).all()
    assert isinstance(loaded.logits, np.memmap) == (memory == "disk")
    files = {path.name for path in tmp_path.iterdir()}  # the file of logits as they came has no name
    assert files == {f"test.{name}.npy" for name in ARRAYS}
    without = predict_table(size, shuffled, unreadable, loss=loss, keep_logits=False)
    assert classification(without, NAMES) == expected
    refused("not kept", getattr, without, "logits")


def predict_table(size: int, shuffled: bool, unreadable: tuple[int, ...] = (), **options: Any) -> Predictions:
    order = np.random.default_rng(1).permutation(COUNT).tolist() if shuffled else range(COUNT)
    made = batches(list(order), [number % CLASSES for number in range(COUNT)], size, unreadable)
    return predict(Table(table()), made, **options)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.usefixtures("_on_disk")
def test_the_file_of_logits_is_closed_with_the_predictions() -> None:
    gc.collect()  # what earlier tests left open is not counted
    before = descriptors()
    made = predict_table(4, False)
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
    refused(r"No space left on device.*28 bytes for each image.*TMPDIR", predict_table, 4, False)


ARRAYS = ("logits", "labels", "ids", "bad")


def saved(folder: Path) -> Path:
    predict_table(4, False, (2, 30)).save(folder / "test.json")
    return folder / "test.json"


def arrays(**changes: object) -> dict[str, NDArray[np.generic]]:
    usual = {"logits": np.zeros((2, 3), np.float32), "labels": [0, 2], "ids": [0, 1], "bad": [2]}
    return {name: np.asarray(value) for name, value in (usual | changes).items()}


def written(folder: Path, made: dict[str, NDArray[np.generic]]) -> Path:
    """A file for each of these arrays."""
    path = folder / "test.json"
    for name, array in made.items():
        np.save(path.with_suffix(f".{name}.npy"), array)
    return path


NO_PREDICTIONS = [
    ({"labels": [0, 3]}, "a label 3, not below 3"),
    ({"labels": [0, -1]}, "labels from -1 to 0"),
    ({"ids": [0, 0]}, "twice"),
    ({"ids": [-1, 0]}, "ids from -1"),
    ({"ids": [0, 2**63 - 1]}, "ids from 0"),
    ({"ids": [0.0, 1.0]}, "not integers"),
    ({"ids": [[0, 1]]}, "expected logits"),
    ({"labels": [[0, 2]]}, "expected logits"),
    ({"labels": [0]}, "expected logits"),
    ({"bad": [True]}, "not integers"),
    ({"bad": [[2]]}, "expected logits"),
    ({"logits": np.zeros((2, 3), int)}, "not rows of float32"),
    ({"logits": np.zeros(2, np.float32)}, "not rows of float32"),
    ({"logits": np.zeros((2, 0), np.float32)}, "a label 2, not below 0"),
    ({"logits": np.array([[0, np.nan, 0]] * 2, np.float32)}, "not finite"),
    ({"logits": np.asfortranarray(np.zeros((2, 3), np.float32))}, "not rows of float32"),
    ({"logits": np.array([["a", "b", "c"]] * 2)}, "not rows of float32|of type <U1"),
    ({"ids": np.array([print, print])}, "Python objects"),
]


@pytest.mark.parametrize(("changes", "reason"), NO_PREDICTIONS)
def test_arrays_that_cannot_be_predictions(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    path = written(tmp_path, arrays(**changes))
    said = refused(reason, Predictions.load, path)
    assert str(path.with_suffix("")) in said and "Run the evaluation again" in said


@pytest.mark.parametrize("name", ["test.logits.npy", "test.bad.npy"])
def test_files_that_cannot_be_predictions(tmp_path: Path, name: str) -> None:
    saved(tmp_path)
    path = tmp_path / name
    np.savez(archive := io.BytesIO(), **arrays())  # type: ignore[arg-type] # which is no array
    for make, reason in (
        (lambda: None, f"The predictions .*{name} cannot be read: no such file"),
        (lambda: path.write_bytes(archive.getvalue()), f"{name}: expected arrays"),
        (lambda: os.mkfifo(path), f"{name} cannot be read: .*not a regular file"),
        (lambda: path.symlink_to(path), f"{name} cannot be read"),
    ):
        path.unlink(missing_ok=True)
        make()
        refused(reason, Predictions.load, tmp_path / "test.json")


@pytest.mark.parametrize(
    ("name", "kind", "shape"), [("labels", "<i8", (10**12,)), ("logits", "<f4", (10**12, 3))]
)
def test_an_array_that_claims_more_than_its_file_holds(
    tmp_path: Path, name: str, kind: str, shape: tuple[int, ...]
) -> None:
    """The header alone is read, so that nobody's claim takes memory."""
    header, path = io.BytesIO(), written(tmp_path, arrays())
    npy.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    path.with_suffix(f".{name}.npy").write_bytes(header.getvalue() + bytes(24))
    refused(r"greater than file ?size", Predictions.load, path)


@pytest.mark.usefixtures("_on_disk")
def test_files_are_numpys_and_what_was_read_stays_when_they_are_replaced(tmp_path: Path) -> None:
    path = saved(tmp_path)
    read = {name: np.load(path.with_suffix(f".{name}.npy"), allow_pickle=False) for name in ARRAYS}
    shapes = {"logits": (COUNT - 2, CLASSES), "labels": (COUNT - 2,), "ids": (COUNT - 2,), "bad": (2,)}
    assert {name: array.shape for name, array in read.items()} == shapes
    assert [read[name].dtype for name in ARRAYS] == [np.float32, np.int64, np.int64, np.int64]
    loaded = Predictions.load(path)
    before = loaded.logits.copy()
    Predictions(before + 1, loaded.labels, loaded.ids, loaded.bad).save(path)
    assert (loaded.logits == before).all()
    assert (Predictions.load(path).logits == before + 1).all()


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_any_damage_is_a_message(tmp_path: Path, count: int) -> None:
    (tmp_path / "saved").mkdir()
    made = Predictions.load(saved(tmp_path / "saved"))
    whole = {"logits": made.logits, "labels": made.labels, "ids": made.ids, "bad": made.bad}
    path = written(tmp_path, whole)
    draw, refused, tried = random.Random(count), 0, 0
    for file in sorted(tmp_path.glob("*.npy")):
        content = file.read_bytes()
        for _ in range(count // len(ARRAYS)):
            tried += 1
            file.write_bytes(mutant(content, draw))
            try:
                loaded = Predictions.load(path)
                classification(loaded, [str(i) for i in range(loaded.classes)])
                assert np.isfinite(loaded.logits).all()
            except VitkitError:
                refused += 1
        file.write_bytes(content)
    # An .npy file has no checksum: a logit of another value is one.
    assert tried >= 0.9 * count and refused > 0.3 * tried
