"""`vitkit.ViTClassifier` keeps the promises of scikit-learn's estimators."""

import errno
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils import estimator_checks

import vitkit
from tests.helpers.refusals import refused

TINY: dict[str, Any] = {
    "model": "ViT-16x1x2/4",
    "image_size": 8,
    "batch_size": 8,
    "options": {"steps": 40, "log_every": 40, "learning_rate": 3e-3, "warmup_steps": 2, "flip": False},
}

pytestmark = pytest.mark.usefixtures("without_report")


def bright_and_dark(count: int = 16) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """Images `(N, 8, 8)` that a few steps tell apart."""
    drawn = np.random.RandomState(0).randint(0, 60, (count, 8, 8))
    bright = np.arange(count) % 2 == 1
    return (drawn + 180 * bright[:, None, None]).astype(np.uint8), np.where(bright, "light", "dark")


@pytest.fixture(scope="module")
def fitted(without_report: None) -> vitkit.ViTClassifier:
    return vitkit.ViTClassifier(**TINY).fit(*bright_and_dark())


def test_it_learns_and_answers_in_the_labels_that_it_was_given(fitted: vitkit.ViTClassifier) -> None:
    images, labels = bright_and_dark()
    assert fitted.classes_.tolist() == ["dark", "light"] and fitted.score(images, labels) == 1.0
    probabilities = fitted.predict_proba(images)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-6)
    assert (fitted.predict(images) == np.where(probabilities[:, 1] > 0.5, "light", "dark")).all()


def test_the_same_images_in_another_form_are_the_same(fitted: vitkit.ViTClassifier, tmp_path: Path) -> None:
    images = bright_and_dark()[0][:4]
    expected = fitted.predict_proba(images)
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    forms: list[Any] = [torch.from_numpy(images), images[..., None], np.repeat(images[..., None], 3, axis=3)]
    forms += [paths, np.array([str(path) for path in paths])]
    for form in forms:
        assert np.array_equal(fitted.predict_proba(form), expected)
    units = clone(fitted).set_params(unit_range=True)
    units.__dict__.update({name: vars(fitted)[name] for name in ("classes_", "_files", "_predictor")})
    assert np.array_equal(units.predict_proba(images / 255), expected)


def test_what_is_no_images_is_refused(tmp_path: Path) -> None:
    cases: tuple[tuple[Any, str], ...] = (
        (np.zeros((2, 8, 8)), "found float64. For floats from 0 to 1 give unit_range=True"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"images.transpose\(0, 2, 3, 1\)"),
        (np.zeros((2, 64), np.uint8), r"found an array \(2, 64\)"),
        (np.zeros((0, 8, 8), np.uint8), r"found an array \(0, 8, 8\)"),
        ("photos", "Expected an array of images or a list of paths, found 'photos'"),
        (["nowhere.png", "nowhere.png"], "nowhere.png cannot be read"),
        ([np.zeros((8, 8), np.uint8)] * 2, r"into one array \(numpy.stack\)"),
        (np.array([["1.png"], ["2.png"]], object), "Expected the paths of image files in a list"),
    )
    for images, said in cases:
        refused(said, vitkit.ViTClassifier(**TINY, folder=tmp_path / "fit").fit, images, [0, 1])
    assert not (tmp_path / "fit").exists()


def test_files_that_cannot_be_read_are_named(
    fitted: vitkit.ViTClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(bright_and_dark()[0][0]).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no image")
    refused(r"bad\.png: not an image", fitted.predict, [tmp_path / "good.png", tmp_path / "bad.png"])

    def fail(*_: Any) -> bytes:
        raise OSError(errno.EIO, "Input/output error")  # of a read, which names no file

    monkeypatch.setattr("vitkit.jobs.classifier.read_regular_file", fail)
    refused("first.*Input/output", vitkit.ViTClassifier(**TINY).fit, ["first.png", "second.png"], [0, 1])


def test_labels_that_do_not_fit_are_refused() -> None:
    images, labels = bright_and_dark()
    for wrong, said in (
        (labels[1:], r"one label for each of 16 images, found labels of the shape \(15,\)"),
        (["cat"] * 16, "two classes or more, found 1"),
        (np.arange(16) / 8, "Expected names or numbers of classes as labels: "),
        (np.array([1, "cat"] * 8, object), "Expected names or numbers of classes as labels: "),
    ):
        refused(said, vitkit.ViTClassifier(**TINY).fit, images, wrong)
    floats = np.array([[[0.0]], [[2.0]]])
    said = r"floats from 0 to 1, found float64 from 0\.0 to 2\.0"
    refused(said, vitkit.ViTClassifier(**TINY, unit_range=True).fit, floats, [0, 1])
    with pytest.raises(NotFittedError):
        vitkit.ViTClassifier().predict(images)


def test_the_random_state_decides(fitted: vitkit.ViTClassifier) -> None:
    """Labels that are numbers come back as numbers, in their order: as text 10 would come before 9."""
    images, labels = bright_and_dark()
    numbers = np.where(labels == "light", 10, 9)
    same, other = (clone(fitted).set_params(random_state=seed).fit(images, numbers) for seed in (0, 1))
    assert np.array_equal(same.predict_proba(images), fitted.predict_proba(images))
    assert not np.array_equal(other.predict_proba(images), fitted.predict_proba(images))
    answered = same.predict(images)
    assert answered.dtype == numbers.dtype and (answered == numbers).all()


def test_it_is_copied_whole_to_another_process(fitted: vitkit.ViTClassifier) -> None:
    images = bright_and_dark()[0]
    before = fitted.predict_proba(images)
    written = pickle.dumps(fitted)
    copied = pickle.loads(written)
    assert vars(copied)["_predictor"] is None
    assert np.array_equal(copied.predict_proba(images), before)
    # The weights once: the model that was loaded to predict, perhaps onto a device, stays where it is.
    assert len(written) == len(pickle.dumps(copied)) < 200_000


def test_a_folder_keeps_the_run_and_refuses_other_images(tmp_path: Path) -> None:
    images, labels = bright_and_dark()
    first = vitkit.ViTClassifier(**TINY, folder=tmp_path / "fit").fit(images, labels)
    folder = tmp_path / "fit" / "run"
    written = (folder / "model.safetensors").stat().st_mtime_ns
    again = clone(first).fit(images, labels)  # the run has finished: it is read, and not trained again
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert np.array_equal(again.predict_proba(images), first.predict_proba(images))
    assert vitkit.Predictor(folder)(images[1])[0].name == "light"
    refused("images of another fit", clone(first).fit, images[2:], labels[2:])
    # It is a start, which is fine-tuned.
    options = {"steps": 3, "evaluate_every": 3, "head": "new"}
    for tuned in (
        vitkit.ViTClassifier(folder, freeze="backbone", options=options),
        vitkit.ViTClassifier(folder, freeze="backbone"),  # in closed form
    ):
        assert tuned.fit(images, labels).score(images, labels) > 0.5
    refused("lerning_rate", vitkit.ViTClassifier(folder, options={"lerning_rate": 1}).fit, images, labels)


def test_scikit_learn_selects_and_composes_it() -> None:
    images, labels = bright_and_dark()
    pipeline = Pipeline([("vit", vitkit.ViTClassifier(**TINY))])
    grid = {"vit__freeze": ["nothing"], "vit__batch_size": np.arange(8, 9)}  # numbers of numpy
    search = GridSearchCV(pipeline, grid, cv=2, error_score="raise")
    assert search.fit(images, labels).best_score_ > 0.5


CHECKS = (
    "parameters_default_constructible no_attributes_set_in_init get_params_invariance set_params "
    "estimator_cloneable estimator_repr mixin_order estimator_tags_renamed"
)
"""scikit-learn's checks that fit nothing. The others fit tables `(N, features)`, which are no images."""


def test_it_passes_the_checks_of_scikit_learn_that_fit_no_table() -> None:
    passed = 0
    for name in CHECKS.split():
        if check := getattr(estimator_checks, f"check_{name}", None):  # an older scikit-learn has fewer
            check("ViTClassifier", vitkit.ViTClassifier())
            passed += 1
    assert passed >= 6


def test_looking_at_it_does_not_import_torch() -> None:
    code = "import sys, vitkit; vitkit.ViTClassifier(epochs=3).get_params(); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in result.stdout.split()
