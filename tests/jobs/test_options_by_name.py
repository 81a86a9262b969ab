"""Options of training by their names, from Python, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import vitkit
from tests.helpers.refusals import refused
from vitkit.models.config import TaskName
from vitkit.runs.config import Run, StartConfig, options_of, with_task
from vitkit.runs.folder import kind_of
from vitkit.runs.run_options import OptionsOfRun
from vitkit.training.config import MAEConfig

TINY: dict[str, Any] = {
    "data": "digits",
    "model": "ViT-16x1x2/4",
    "image_size": 8,
    "batch_size": 16,
    "evaluate_every": 4,
    "log_every": 4,
}

pytestmark = pytest.mark.usefixtures("without_report")


def trained(folder: Path, **options: Any) -> Path:
    return vitkit.train(out=folder, **{**TINY, "steps": 4, **options})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    return trained(tmp_path_factory.mktemp("start") / "run")


def test_a_recipe_takes_other_values_and_keeps_the_rest() -> None:
    """Options of the splits have names that Python can write, and a task brings its objective along."""
    plain, changed = vitkit.recipe("photos"), vitkit.recipe("photos", epochs=5, learning_rate=3e-4)
    optimizer = replace(plain.optimizer, learning_rate=3e-4)
    assert changed == replace(plain, training=replace(plain.training, epochs=5.0), optimizer=optimizer)
    assert changed.recipe == "photos"
    assert vitkit.recipe("digits", splits_val_fraction=0.25).splits.val_fraction == 0.25
    refused(r"named val_fraction. Here it is splits_val_fraction", vitkit.recipe, "digits", val_fraction=0.25)
    training = vitkit.recipe("masked-patches", epochs=3).training  # in place of the recipe's steps
    assert (training.steps, training.epochs) == (None, 3.0)
    run = vitkit.recipe("photos", task="mae", decoder_depth=1)
    assert isinstance(run.objective, MAEConfig) and run.objective.decoder_depth == 1
    assert run.splits.test_fraction == 0.0


def test_misspelt_options_and_names_of_other_libraries_are_answered_at_once(
    tmp_path: Path, start: Path
) -> None:
    wrong: dict[str, Any] = {"lr": 1e-3, "stepps": 3}
    said = (
        r"^No option of training is named lr\. Here it is learning_rate\. "
        r"No option of training is named stepps\. Did you mean 'steps'\?$"
    )
    out = tmp_path / "run"
    refused(said, vitkit.recipe, "photos", **wrong)
    refused(said, vitkit.train, "digits", out, **wrong)
    refused(said, vitkit.finetune, start, "digits", out, **wrong)
    refused(said, vitkit.pretrain, "digits", out=out, **wrong)
    assert not out.exists()


def test_the_names_that_a_type_checker_knows_are_those_of_the_run() -> None:
    runs = [with_task(Run(), task) for task in get_args(TaskName)]
    options = {option for run in runs for option in options_of(run)}
    names = {option.removeprefix("--").replace("-", "_").replace(".", "_") for option in options}
    assert get_type_hints(OptionsOfRun).keys() == names - {"recipe"}


def test_training_by_options_is_the_run_that_they_make(tmp_path: Path) -> None:
    """They go over a run that is given."""
    folder = trained(tmp_path / "run", learning_rate=2e-3, recipe="digits")
    run = vitkit.recipe("digits", **{**TINY, "steps": 4, "learning_rate": 2e-3})
    assert kind_of(folder).run() == run
    other = vitkit.train(run, tmp_path / "other", steps=2, seed=5)
    assert (kind_of(other).run().training.steps, kind_of(other).run().training.seed) == (2, 5)


def test_what_would_be_misunderstood_is_refused(tmp_path: Path) -> None:
    refused("not both", vitkit.train, Run(), recipe="digits")
    said = r"begin the run with vitkit.finetune\(start, data\)"
    refused(said, vitkit.train, data="digits", start=str(tmp_path))


def test_fine_tuning_takes_them_and_chooses_the_rest(start: Path) -> None:
    chosen = vitkit.finetune_run(start, "digits")
    run = vitkit.finetune_run(start, "digits", learning_rate=1e-3, batch_size=16)
    assert run.optimizer.learning_rate == 1e-3 and run.training.batch_size == 16
    assert run.optimizer.layer_decay == chosen.optimizer.layer_decay
    assert run.augmentation == chosen.augmentation
    # A warm-up that is left out is a part of the length that is given.
    assert vitkit.finetune_run(start, "digits", steps=40).optimizer.warmup_steps == 2
    assert vitkit.finetune_run(start, "digits", steps=40, warmup_steps=9).optimizer.warmup_steps == 9
    # The rate of a head that learns alone is another one, and a part of the images takes another length.
    alone = vitkit.finetune_run(start, "digits", freeze="backbone", head="new").optimizer
    assert (alone.freeze, alone.learning_rate, alone.head_rate) == ("backbone", 3e-3, 1.0)
    # A head that is kept has nothing to catch up on.
    same_head = vitkit.finetune_run(StartConfig(str(start), head="keep"), "digits").optimizer
    assert (same_head.learning_rate, same_head.head_rate) == (5e-4, 1.0)
    part = vitkit.finetune_run(start, "digits", splits_subset="[:50]")
    assert part.training.batch_size < chosen.training.batch_size
