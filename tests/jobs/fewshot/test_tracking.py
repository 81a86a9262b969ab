"""Few-shot accuracy while a model is trained."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from tests.helpers.fewshot import SIZE, class_folders
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import Loading, Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.evaluation.fewshot.data import follow
from vitkit.runs.config import Run
from vitkit.training.config import TrainingConfig


def extractors(preprocessing: Preprocessing) -> Any:
    return partial(FeatureExtractor, preprocessing=preprocessing, device=torch.device("cpu"))


def test_the_evaluator_measures_what_the_command_does_and_changes_nothing(data: str, start: str) -> None:
    model = vitkit.load_model(start).train()
    preprocessing = Preprocessing(SIZE, antialias=False)
    tracking = FewShotTracking(data, shots=(1, 5))
    evaluate = follow(tracking, extractors(preprocessing), ("ridge", "knn"))
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    measured = evaluate(model, torch.nn.Module())
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, before, model.parameters()))
    fewshot = vitkit.fewshot(start, data, shots=(1, 5), methods=("ridge", "knn"))
    assert measured == {
        f"{score.method}_{score.shots}_shots": score.mean for score in fewshot.models[0].scores
    }
    assert evaluate(model, torch.nn.Module()) == measured
    with torch.no_grad():  # other features, by weights that are the same in every run of the test
        model.get_parameter("blocks.0.mlp.fc1.weight").normal_(generator=torch.Generator().manual_seed(1))
    assert evaluate(model, torch.nn.Module()) != measured
    assert not Path("cache/features").exists() or len(list(Path("cache/features").iterdir())) == 2


def test_the_evaluator_needs_features(data: str) -> None:
    with pytest.raises(VitkitError, match="found Linear"):
        follow(FewShotTracking(data), extractors(Preprocessing(SIZE)))(
            torch.nn.Linear(2, 2), torch.nn.Module()
        )


def training_run(data: str, followed: FewShotTracking | None = None) -> Run:
    return replace(
        vitkit.recipe("digits"),
        data=data,
        model="ViT-16x2x2/4",
        preprocessing=Preprocessing(SIZE),
        training=TrainingConfig(steps=6, batch_size=4, evaluate_every=2),
        loading=Loading(workers=0),
        fewshot=followed or FewShotTracking(),
    )


def test_few_shot_accuracy_is_logged_while_a_model_is_trained(data: str, tmp_path: Path) -> None:
    """Every three steps and after the last, with the accuracy that the command finds of the model; the
    weights are those of a run without."""
    other = str(class_folders(tmp_path / "other", {"x": 9, "y": 9}))
    hearing = Hearing()
    followed = vitkit.train(
        training_run(data, FewShotTracking("other", 3, (2, 4))), "followed", listener=hearing
    )
    alone = vitkit.train(training_run(data), "alone")
    assert (followed / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()
    lines = [json.loads(line) for line in (followed / "metrics.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line.get("evaluator") == "fewshot"]
    assert [line["step"] for line in measured] == [3, 6]
    assert all({"ridge_2_shots", "ridge_4_shots"} <= line.keys() for line in measured)
    assert [line for line in lines if line not in measured] == [
        json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()
    ]
    assert any("4 shots" in detail for _, _, detail in hearing.milestones)
    page = (followed / "report.html").read_text()
    assert "Few-shot accuracy while it was trained" in page and "; at step 6: 2 shots" in page
    for line in measured:
        assert f">{line['ridge_4_shots']:.1%}</td>" in page
    assert "Few-shot accuracy while" not in (alone / "report.html").read_text()
    assert json.loads((followed / "config.json").read_text())["run"]["fewshot"]["data"] == other
    with pytest.raises(VitkitError, match="No data at"):
        vitkit.train(training_run(data, FewShotTracking("nowhere")), "nothing")
    assert not Path("nothing").exists()


def test_the_options_of_following_are_those_of_the_command(data: str, tmp_path: Path) -> None:
    class_folders(tmp_path / "other", {"x": 9, "y": 9})
    command = f"train --data {data} --model ViT-16x2x2/4 --image-size 8 12 --steps 2 --batch-size 4 --out run"
    followed = "--fewshot.data other --fewshot.every 1 --fewshot.shots 1,3"
    assert run([*command.split(), *followed.split()]) == 0
    recorded = json.loads(Path("run/config.json").read_text())["run"]["fewshot"]
    other = str(tmp_path / "other")
    assert recorded == {"data": other, "every": 1, "shots": [1, 3]}
    log = Path("run/metrics.jsonl").read_text()
    assert log.count("ridge_3_shots") == 2


@pytest.mark.parametrize("wrong", [{"shots": (0,)}, {"shots": ()}, {"every": 0}])
def test_following_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(VitkitError, match=r"few-shot evaluation|every is at least 1"):
        FewShotTracking(**wrong)
