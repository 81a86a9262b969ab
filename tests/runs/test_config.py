"""Differences between runs, with the names that options have on the command line."""

import re
from dataclasses import replace

import pytest

from tests.helpers.refusals import refused
from vitkit.cli.main import run
from vitkit.config import difference, to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.runs.config import Run, changed_options, full_name, name_options, option_value, with_options
from vitkit.training.config import OBJECTIVES, ClassificationConfig, OptimizerConfig, TrainingConfig


def test_every_field_of_a_run_is_called_by_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    def changed(value: object) -> object:
        return {key: changed(part) for key, part in value.items()} if isinstance(value, dict) else "other"

    named = name_options(difference(to_json(Run()), changed(to_json(Run()))))
    assert run(["train", "--help-all"]) == 0
    options = set(re.findall(r"--(?:no-)?[a-z][a-z0-9.-]*", capsys.readouterr().out.replace("--no-", "--")))
    hidden = {"--extra-class-token", "--stem-channels", "--stem-strides", "--gelu", "--apply-exif"}
    hidden |= {"--crop-offset", "--border", "--splits.subset-seed"}  # for recipes and Python
    assert {line.split()[0] for line in named} - options == hidden


def test_what_only_follows_from_another_length_is_left_out() -> None:
    begun = Run()
    begun = replace(begun, training=replace(begun.training, steps=4, evaluate_every=1))
    again = replace(begun.training, steps=5, epochs=117.0, evaluate_every=2)
    longer = replace(begun, training=again, optimizer=replace(begun.optimizer, warmup_steps=7))
    changes = changed_options(to_json(begun), "config.json", longer)
    assert name_options(changes) == ["--steps 4 -> 5"]
    # Epochs decide nothing beside steps.
    other = replace(begun, training=replace(begun.training, epochs=117.0))
    assert changed_options(to_json(begun), "config.json", other) == []
    assert name_options(["training.steps: 4 -> 5", "training.epochs: 2 -> 3"]) == ["--steps 4 -> 5"]
    assert name_options(["training.epochs: 2 -> 3"]) == ["--epochs 2 -> 3"]
    warm = replace(begun, optimizer=replace(begun.optimizer, warmup_steps=7))
    changes = changed_options(to_json(begun), "config.json", warm)
    assert len(name_options(changes)) == 1 and name_options(changes)[0].startswith("--warmup-steps ")


def test_options_of_few_shot_accuracy_are_named_with_their_section() -> None:
    followed = Run(fewshot=FewShotTracking("digits", None, (1, 5)))
    assert name_options(changed_options(to_json(followed), "config.json", Run())) == [
        "--fewshot.data 'digits' -> ''",
        "--fewshot.shots [1, 5] -> [1, 5, 10, 25]",
    ]
    assert with_options(Run(), {"fewshot_data": "digits", "fewshot.shots": "1 5"}) == followed


def test_objective_and_task_belong_together(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ClassificationConfig):
        """The configuration of another task's objective."""

    monkeypatch.setitem(OBJECTIVES, "multi-label", Other)
    refused(r"multi-label is made from a Other, found a ClassificationConfig", Run, task="multi-label")


def test_muon_is_not_divided_among_processes() -> None:
    with pytest.raises(VitkitError, match=r"muon updates whole matrices, of which sharding fsdp gives each"):
        Run(optimizer=OptimizerConfig(optimizer="muon"), training=TrainingConfig(sharding="fsdp"))


@pytest.mark.parametrize(
    ("option", "given", "value"),
    [
        ("steps", "20", 20),
        ("learning-rate", "1", 1.0),
        ("learning_rate", 2, 2.0),
        ("flip", "false", False),
        ("clip_norm", "none", None),
        ("position", "none", "none"),  # a kind of position, and no missing value
        ("polyak", None, None),
        ("image_size", "32x64", (32, 64)),
        ("image_size", "32", (32, 32)),
        ("image_size", 32, (32, 32)),
        ("image_mean", 0.5, (0.5,)),
        ("crop_area", "0.5 1", (0.5, 1.0)),
        ("stem_strides", (1, 2, 2), (1, 2, 2)),
        ("splits.seed", "3", 3),
        ("max-pixels", "1000", 1000),
        ("model", "BiT-R50x1", "BiT-R50x1"),
    ],
)
def test_an_option_is_set_by_its_name(option: str, given: object, value: object) -> None:
    run = with_options(Run(), {option: given})
    setting = option_value(run, option)
    assert setting == value and type(setting) is type(value)
    assert len(difference(to_json(Run()), to_json(run))) <= 1  # nothing else has changed


def test_options_that_are_right_only_together_are_set_together() -> None:
    adam = with_options(Run(), {"optimizer": "adam", "weight_decay": "0", "steps": 3})
    assert (adam.optimizer.optimizer, adam.optimizer.weight_decay, adam.training.steps) == ("adam", 0.0, 3)
    refused("Adam here has no weight decay", with_options, Run(), {"optimizer": "adam"})


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("lerning_rate", "1", "No option of training is named lerning_rate. Did you mean 'learning_rate'?"),
        ("val_fraction", "0.1", "Here it is splits_val_fraction."),
        ("position", "learnt", "position: expected one of 'learned', .* found 'learnt'"),
        ("steps", "2.5", "steps: expected int, found '2.5'"),
        ("steps", 2.5, "steps: expected int, found 2.5"),
        ("flip", "perhaps", "flip: expected bool, found 'perhaps'"),
        ("image_size", "1x2x3", "image_size: expected"),
        ("steps", "0", "steps is at least 1, found 0"),
    ],
)
def test_an_option_that_is_none_and_a_value_that_is_none_of_it_are_refused(
    option: str, given: object, said: str
) -> None:
    refused(said, with_options, Run(), {option: given})


def test_a_run_whose_start_names_the_model_has_no_full_name() -> None:
    assert full_name(Run(model=""), 3) == "" and full_name(Run(model="ViT-Ti/16"), 3) == "ViT-Ti/16"
