"""Differences between runs, with the names that options have on the command line."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from vitkit.cli.main import run
from vitkit.config import difference, from_json, to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.tracking import FewShotTracking
from vitkit.runs.config import Run, changed_options, name_options, train_longer
from vitkit.training.config import OBJECTIVES, ClassificationConfig, OptimizerConfig, TrainingConfig


def test_every_field_of_a_run_is_called_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    def changed(value: object) -> object:
        return {key: changed(part) for key, part in value.items()} if isinstance(value, dict) else "other"

    named = name_options(difference(to_json(Run()), changed(to_json(Run()))))
    assert run(["train", "--help"]) == 0
    known = set(re.findall(r"--(?:no-)?[a-z][a-z0-9.-]*", capsys.readouterr().out.replace("--no-", "--")))
    assert len(named) > 60 and {line.split()[0] for line in named} <= known


def test_what_only_follows_from_another_length_is_left_out() -> None:
    begun = Run()
    begun = replace(begun, training=replace(begun.training, steps=4, evaluate_every=1))
    again = replace(begun.training, steps=5, epochs=117.0, evaluate_every=2)
    longer = replace(begun, training=again, optimizer=replace(begun.optimizer, warmup_steps=7))
    changes = changed_options(to_json(begun), "config.json", longer)
    assert name_options(changes) == ["--steps 4 -> 5"]
    assert "vitkit train --start 'my run'" in train_longer(changes, Path("my run"))
    # Epochs decide nothing beside steps.
    other = replace(begun, training=replace(begun.training, epochs=117.0))
    assert changed_options(to_json(begun), "config.json", other) == []
    assert name_options(["training.steps: 4 -> 5", "training.epochs: 2 -> 3"]) == ["--steps 4 -> 5"]
    assert name_options(["training.epochs: 2 -> 3"]) == ["--epochs 2 -> 3"]
    warm = replace(begun, optimizer=replace(begun.optimizer, warmup_steps=7))
    changes = changed_options(to_json(begun), "config.json", warm)
    assert len(name_options(changes)) == 1 and name_options(changes)[0].startswith("--warmup-steps ")
    assert train_longer(changes, Path("run")) == ""


def test_the_few_shot_accuracy_that_early_versions_recorded_is_an_evaluator() -> None:
    """As a7c5a4b wrote it, at the top of the run; without data nothing was measured."""
    early = {key: value for key, value in to_json(Run()).items() if key != "evaluators"}
    tracked = {"data": "", "every": None, "shots": [1, 5], "seeds": 3}
    assert from_json(Run, {**early, "fewshot": tracked}, "config.json") == Run()
    followed = {**early, "fewshot": {**tracked, "data": "digits"}}
    run = from_json(Run, followed, "config.json")
    assert run.evaluators == {"fewshot": FewShotTracking("digits", None, (1, 5), 3)}
    assert from_json(Run, to_json(run), "config.json") == run
    assert name_options(changed_options(followed, "config.json", replace(run, evaluators={}))) == [
        "--fewshot.data 'digits' -> ''",
        "--fewshot.shots [1, 5] -> [1, 5, 10, 25]",
    ]
    with pytest.raises(VitkitError, match=r"config\.json: fewshot: seeds: expected int"):
        from_json(Run, {**early, "fewshot": {**tracked, "seeds": "many"}}, "config.json")


def test_objective_and_task_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ClassificationConfig):
        """The configuration of another task's objective."""

    monkeypatch.setitem(OBJECTIVES, "multi-label", Other)
    with pytest.raises(VitkitError, match=r"multi-label is made from a Other, found a ClassificationConfig"):
        Run(task="multi-label")
    with pytest.raises(VitkitError, match="name of the task's own evaluator"):
        Run(evaluators={"validation": FewShotTracking("digits")})


def test_muon_is_not_divided_among_processes() -> None:
    with pytest.raises(
        VitkitError, match=r"muon updates whole matrices, of which --sharding fsdp gives each"
    ):
        Run(optimizer=OptimizerConfig(optimizer="muon"), training=TrainingConfig(sharding="fsdp"))
