"""Runs that begin with the ridge solution on the features of their start."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.data.listing import class_numbers
from vitkit.data.sources import open_data
from vitkit.data.sources_config import NEWEST_RULE, Splits
from vitkit.data.transforms_config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot_folds import mixed_order
from vitkit.evaluation.fewshot_head import fit_head
from vitkit.jobs import train as training
from vitkit.models.build import create_model
from vitkit.runs import ridge_head
from vitkit.runs.config import Run, StartConfig, read_run
from vitkit.training.objectives_config import ClassificationConfig
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig
from vitkit.weights import save_model

pytestmark = pytest.mark.usefixtures("without_report")
STILL = OptimizerConfig(learning_rate=1e-30, weight_decay=0.0)
RULE = Preprocessing((8, 8), resize="crop")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Random weights: their features tell digits apart too."""
    folder = tmp_path_factory.mktemp("start") / "model"
    save_model(create_model("ViT-16x2x2/2", 3, 8, generator=torch.Generator().manual_seed(0)), folder)
    yield folder


def ridge_run(start: Path, **changes: Any) -> Run:
    """A short run on digits that begins with the ridge solution."""
    run = Run(
        data="digits",
        model="",
        start=StartConfig(str(start), head="ridge"),
        preprocessing=RULE,
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2, polyak=0.9),
        training=TrainingConfig(steps=8, batch_size=64, checkpoint_every=4, evaluate_every=4, log_every=1),
    )
    return replace(run, **changes)


@pytest.mark.parametrize("most", [10_000, 300])
def test_the_head_begins_as_the_closed_form(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """At a rate of 1e-30 nothing moves: the run ends with the head that it began with."""
    monkeypatch.setattr(ridge_head, "MOST_IMAGES", most)
    hearing = Hearing()
    training.train(ridge_run(start, optimizer=STILL), tmp_path / "run", listener=hearing)
    found = load_file(tmp_path / "run/model.safetensors")
    samples = open_data("digits", Splits(rule=NEWEST_RULE), RULE.decode).splits["train"]
    extractor = FeatureExtractor(load_model(start), RULE, torch.device("cpu"))
    labels = class_numbers(samples.labels)
    used = np.sort(mixed_order(labels, 0)[:most])
    assert len(used) == min(most, len(samples))
    shares = np.bincount(labels[used]) / len(used)
    assert np.allclose(shares, np.bincount(labels) / len(labels), atol=0.01)
    head = fit_head(extractor.compute(samples, used).rows, labels[used], 10)
    assert np.allclose(found["head.weight"], head.weight, rtol=1e-3, atol=1e-3)
    assert np.allclose(found["head.bias"], head.bias, rtol=1e-3, atol=1e-3)
    said = dict(hearing.rows)["start"]
    assert any(line.startswith("head: new, the ridge solution on its features, 10 classes") for line in said)
    assert any(f"on features of {len(used):,} training images" in note for note in hearing.notes)
    assert hearing.done["features for the head"] == len(used)
    trunk = load_file(start / "model.safetensors")
    assert all(torch.allclose(found[x], trunk[x], rtol=0, atol=1e-27) for x in found if x[:5] != "head.")


def test_it_is_right_more_often_than_zeros_before_any_step(tmp_path: Path, start: Path) -> None:
    training.train(ridge_run(start, optimizer=STILL), tmp_path / "run")
    test = json.loads((tmp_path / "run/evaluation/test.json").read_text())
    assert test["accuracy"] > 0.3 and test["loss"] < 2  # of zeros: 0.1 and 2.3


def test_killed_before_its_first_checkpoint_it_begins_again_with_the_same_bits(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train(ridge_run(start), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):

        def killed(*_arguments: Any) -> None:
            raise RuntimeError("killed")

        patch.setattr(training, "fit", killed)
        training.train(ridge_run(start), tmp_path / "part")
    training.train(ridge_run(start), tmp_path / "part")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (whole / name).read_bytes()


def test_a_resumed_run_has_its_head_from_the_checkpoint(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train(ridge_run(start), tmp_path / "run")
    expected = (whole / "model.safetensors").read_bytes()
    (last,) = (whole / "checkpoints").glob("step-00000008")
    for file in sorted(last.rglob("*")):
        file.unlink()
    last.rmdir()
    (whole / "report.html").unlink()
    monkeypatch.setattr(ridge_head, "fit_head", None)  # calling it would fail
    training.train(read_run(whole), whole, resume=True)
    assert (whole / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("name", ["BiT-R2-2-2x0.5", "ViT-16x1x2/8-gap", "ViT-16x1x2/8-map"])
def test_all_families_begin_with_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge_head, "MOST_IMAGES", 40)
    save_model(create_model(name, num_classes=7, image_size=32), tmp_path / "start")
    run = ridge_run(
        tmp_path / "start",
        preprocessing=Preprocessing((32, 32)),
        training=TrainingConfig(steps=1, batch_size=4, evaluate_test=False),
        splits=Splits(val_fraction=0.0),
        optimizer=STILL,
    )
    training.train(run, tmp_path / "run")
    assert load_file(tmp_path / "run/model.safetensors")["head.weight"].abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"start": StartConfig(head="ridge"), "model": "ViT-16x2x2/2"}, "give --start, or leave"),
        ({"objective": ClassificationConfig(loss="sigmoid")}, "for one class an image and the softmax loss"),
    ],
)
def test_where_there_is_no_solution_it_is_refused(
    tmp_path: Path, start: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(VitkitError, match=words):
        training.train(replace(ridge_run(start), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()
