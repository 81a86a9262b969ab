"""Series of runs: sweeps over learning rates, several seeds, all folds."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.config import to_json
from vitkit.data.config import Preprocessing, Splits
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError
from vitkit.jobs import train as training
from vitkit.jobs.finetune_recipes import sweep_rates
from vitkit.jobs.recipes import recipe
from vitkit.jobs.series import series as job
from vitkit.jobs.series.report import conclusions
from vitkit.jobs.series.series import train_series
from vitkit.listener import SILENT
from vitkit.models.build import create_model
from vitkit.runs import series_record as record
from vitkit.runs.config import Run, StartConfig, read_run
from vitkit.runs.data_record import require_same_images
from vitkit.runs.folder import lock_folder
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import Member, Score, Series, choose_rate, new_series, read_series, summarise
from vitkit.runs.start import find_start
from vitkit.tasks import find_task
from vitkit.training import checkpoint, ended
from vitkit.training.checkpoint import survey
from vitkit.training.config import OptimizerConfig, TrainingConfig
from vitkit.training.ended import read_ended
from vitkit.training.optim import SGD, create_optimizer, learning_rate
from vitkit.weights import save_model

SMALL = Run(
    data="digits",
    model="ViT-16x1x2/4",
    preprocessing=Preprocessing((8, 8), resize="crop"),
    optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2),
    training=TrainingConfig(steps=4, batch_size=16, evaluate_every=2),
)
SWEEP = SeriesOptions(sweep_rates=(0.02, 0.001))


pytestmark = pytest.mark.usefixtures("without_report")


def counts(folder: Path) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / "data.json").read_text())["images"]
    return found


def test_a_sweep_holds_images_out_and_leaves_the_test_images_alone(tmp_path: Path) -> None:
    hearing = Hearing()
    out = train_series(SMALL, tmp_path / "sweep", SWEEP, listener=hearing)
    found = read_series(out)
    assert [one.folder for one in found.all_members] == ["rate-0.001", "rate-0.02", "final"]
    for member in found.rates:
        folder = out / member.folder
        assert counts(folder) == {"train": 1257, "val": 180, "test": 360}
        evaluated = {path.name.split(".")[0] for path in (folder / "evaluation").iterdir()}
        assert evaluated == {"val"}
        # Judged as the last run will end, which has no validation: by its last weights.
        assert read_run(folder).training.select == "last"
        recorded = json.loads((folder / "evaluation/val.json").read_text())
        assert member.score is not None and member.score.value == recorded["accuracy"]
        assert list(member.score.interval or ()) == recorded["accuracy_interval"]
    assert counts(out / "final") == {"train": 1437, "test": 360}
    scores = {one.learning_rate: one.score for one in found.rates if one.score is not None}
    best = max(scores, key=lambda rate: (scores[rate].value or 0.0, -(scores[rate].tie or 0.0)))
    final = read_run(out / "final")
    assert found.chosen == best == final.optimizer.learning_rate
    assert final.training == SMALL.training and final.splits.val_fraction == 0
    tested = json.loads((out / "final/evaluation/test.json").read_text())
    assert found.spread is not None and found.spread.mean == tested["accuracy"]
    assert any("is the best on 180 held-out images" in line for line in dict(hearing.rows)["chosen"])
    page = (out / "report.html").read_text()
    assert "0.001" in page and "chosen" in page and "final/report.html" in page and "<svg" in page


def test_the_folder_of_a_series_predicts_as_its_first_run(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2))
    whole, first = load_model(out).state_dict(), load_model(out / "seed-0").state_dict()
    assert all(whole[name].equal(tensor) for name, tensor in first.items())
    assert vitkit.evaluate(out).result.accuracy == vitkit.evaluate(out / "seed-0").result.accuracy


def test_several_runs_have_other_seeds_and_the_same_splits(tmp_path: Path) -> None:
    run = replace(SMALL, training=replace(SMALL.training, seed=5))
    out = train_series(run, tmp_path / "runs", SeriesOptions(runs=3))
    found = read_series(out)
    assert [one.folder for one in found.members] == ["seed-5", "seed-6", "seed-7"]
    records = [json.loads((out / one.folder / "data.json").read_text()) for one in found.members]
    assert len({record["fingerprint"] for record in records}) == 1
    assert len({(out / one.folder / "model.safetensors").read_bytes() for one in found.members}) == 3
    values = [one.score.value or 0.0 for one in found.members if one.score is not None]
    assert found.spread is not None and len(values) == 3
    assert found.spread.mean == pytest.approx(np.mean(values))
    assert found.spread.deviation == pytest.approx(np.std(values, ddof=1))
    assert (found.spread.lowest, found.spread.highest) == (min(values), max(values))
    # The first is the run that is trained alone.
    alone = training.train(run, tmp_path / "alone")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (alone / name).read_bytes() == (out / "seed-5" / name).read_bytes()


def test_a_sweep_is_done_once_for_several_runs(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "both", replace(SWEEP, runs=2))
    found = read_series(out)
    assert [one.folder for one in found.all_members] == ["rate-0.001", "rate-0.02", "seed-0", "seed-1"]
    assert {read_run(out / one.folder).optimizer.learning_rate for one in found.members} == {found.chosen}


def test_each_image_is_tested_once_in_a_cross_validation(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "folds", SeriesOptions(cross_validate=3))
    tested: Counter[str] = Counter()
    for number in range(3):
        run = read_run(out / f"fold-{number}")
        test = open_data("digits", run.splits).splits["test"]
        tested.update(test.key(index) for index in range(len(test)))
        assert counts(out / f"fold-{number}")["test"] == len(test)
    assert len(tested) == 1797 and set(tested.values()) == {1}
    found = read_series(out)
    assert found.spread is not None and found.spread.runs == 3
    assert not (out / "model.safetensors").exists()  # no fold is better than another
    pooled = found.spread.pooled
    assert pooled is not None and pooled.images == 1797
    evaluations = [json.loads((out / f"fold-{k}/evaluation/test.json").read_text()) for k in range(3)]
    assert pooled.right == sum(evaluation["correct"] for evaluation in evaluations)
    assert "Each of 1,797 images was tested once" in (out / "report.html").read_text()


def test_what_has_ended_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, trained = tmp_path / "sweep", []
    train = training.train

    def counted(run: Run, folder: Path, **options: Any) -> Path:
        trained.append(folder.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(run, folder, **options)

    monkeypatch.setattr(job, "train", counted)
    with pytest.raises(KeyboardInterrupt):
        train_series(SMALL, out, SWEEP)
    assert [one.finished for one in read_series(out).all_members] == [True, False, False]
    train_series(SMALL, out, SWEEP)
    train_series(SMALL, out, SWEEP)
    assert trained == ["rate-0.001", "rate-0.02", "rate-0.02", "final"]


def test_a_changed_option_is_refused_with_both_values(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2))
    with pytest.raises(VitkitError, match="--runs 2 -> 3"):
        train_series(SMALL, out, SeriesOptions(runs=3))
    longer = replace(SMALL, training=replace(SMALL.training, steps=5))
    with pytest.raises(VitkitError, match=r"--steps 4 -> 5"):
        train_series(longer, out, SeriesOptions(runs=2))
    with pytest.raises(VitkitError, match="is there already and is no run folder"):
        training.train(SMALL, out)
    with pytest.raises(VitkitError, match="holds a single run and no series"):
        train_series(SMALL, out / "seed-0", SeriesOptions(runs=2))


def test_a_rate_that_diverges_is_told_and_not_chosen(tmp_path: Path) -> None:
    wild = replace(SMALL, optimizer=replace(SMALL.optimizer, warmup_steps=0))
    options = SeriesOptions(sweep_rates=(0.001, 1e36))
    hearing = Hearing()
    out = train_series(wild, tmp_path / "sweep", options, listener=hearing)
    found = read_series(out)
    assert found.chosen == 0.001
    assert "Step" in found.rates[1].diverged and found.rates[1].score is None
    assert any("training diverged" in said for said in hearing.warnings)
    assert "With 1e+36 training diverged." in found.reasons
    assert "diverged" in (out / "report.html").read_text()


def test_where_all_rates_diverge_nothing_is_chosen(tmp_path: Path) -> None:
    wild = replace(SMALL, optimizer=replace(SMALL.optimizer, warmup_steps=0))
    with pytest.raises(VitkitError, match=r"None of the learning rates 1e[+]35, 1e[+]36 led to a model"):
        train_series(wild, tmp_path / "sweep", SeriesOptions(sweep_rates=(1e36, 1e35)))
    assert not (tmp_path / "sweep/final").exists()


def swept(*results: tuple[float, float | None, float | None]) -> Series:
    """A sweep whose rates have these scores: rate, value, loss."""
    rates = [
        Member(f"rate-{rate:g}", rate, 0, score=Score("val", value, None, loss, 100), finished=True)
        for rate, value, loss in results
    ]
    return new_series("", SMALL, SeriesOptions(sweep=True), rates, [Member("final", 0.0, 0)], False)


@pytest.mark.parametrize(
    ("results", "chosen"),
    [
        ([(0.1, 0.5, 1.0), (0.2, 0.6, 9.0)], 0.2),
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 0.9)], 0.2),  # the lower loss
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 1.0)], 0.1),  # the lower rate
        ([(0.1, None, None), (0.2, 0.1, 2.0)], 0.2),
        ([(0.1, float("nan"), 1.0), (0.2, 0.1, float("nan"))], 0.2),
    ],
)
def test_ties_and_scores_that_are_none(results: list[Any], chosen: float) -> None:
    found = choose_rate(swept(*results))
    assert found.chosen == chosen == found.members[0].learning_rate


def test_ties_are_told() -> None:
    (told,) = (
        line for line in choose_rate(swept((0.1, 0.6, 1.0), (0.2, 0.6, 2.0))).reasons if "same" in line
    )
    assert told == "0.2 scored the same: the lower loss decided, then the lower rate."


def test_the_rates_are_those_of_table_4() -> None:
    assert sweep_rates(recipe("finetune-imagenet")) == (0.003, 0.01, 0.03, 0.06)
    for name in ("finetune-cifar10", "finetune-cifar100", "finetune-pets", "finetune-flowers", "paper"):
        assert sweep_rates(recipe(name)) == (0.001, 0.003, 0.01, 0.03)
    assert sweep_rates(recipe("finetune-vtab")) == (0.01,)
    shares = {
        name: recipe(f"finetune-{name}").splits.val_fraction for name in ("imagenet", "cifar10", "pets")
    }
    assert shares == {"imagenet": 0.01, "cifar10": 0.02, "pets": 0.1}
    assert sweep_rates(SMALL) == (0.001, 0.003, 0.01, 0.03)


def test_a_single_rate_needs_no_sweep(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "one", SeriesOptions(sweep_rates=(0.005,)))
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"final"}
    assert read_run(out / "final").optimizer.learning_rate == 0.005
    assert counts(out / "final") == {"train": 1437, "test": 360}
    train_series(SMALL, out, SeriesOptions(sweep_rates=(0.005,)))  # the same series


def photos(root: Path, *splits: str) -> Path:
    """Small pictures of two classes, in split folders where there are such."""
    draw = np.random.default_rng(0)
    for split in splits or (".",):
        for number in range(30):
            pixels = draw.integers(0, 128, (8, 8, 3)) + 120 * (number % 2)
            path = root / split / ("bright" if number % 2 else "dark") / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


def test_a_validation_split_of_the_datas_own_chooses_and_stays(tmp_path: Path) -> None:
    data = photos(tmp_path / "data", "train", "val", "test")
    out = train_series(replace(SMALL, data=str(data)), tmp_path / "sweep", SWEEP)
    for folder in ("rate-0.001", "rate-0.02", "final"):
        assert counts(out / folder) == {"train": 30, "val": 30, "test": 30}
        assert read_run(out / folder).training.select == "best"


def test_the_images_of_a_series_may_move(tmp_path: Path) -> None:
    data = photos(tmp_path / "data")
    run = replace(SMALL, data=str(data))
    out = train_series(run, tmp_path / "runs", SeriesOptions(runs=2))
    data.rename(tmp_path / "moved")
    (out / "seed-1/report.html").unlink()
    (out / "seed-1/model.safetensors").unlink()
    moved = replace(run, data=str(tmp_path / "moved"))
    train_series(moved, out, SeriesOptions(runs=2), resume=True)
    assert (out / "seed-1/model.safetensors").exists()


def test_without_test_images_the_last_run_is_not_evaluated(tmp_path: Path) -> None:
    run = replace(SMALL, splits=replace(SMALL.splits, test_fraction=0.0))
    out = train_series(run, tmp_path / "sweep", SWEEP)
    assert read_series(out).spread is None and counts(out / "final") == {"train": 1797}
    assert "There are no test images" in (out / "report.html").read_text()
    with pytest.raises(VitkitError, match="Several runs are compared on test or validation images"):
        train_series(run, tmp_path / "both", replace(SWEEP, runs=2))


def test_a_start_is_fine_tuned_with_a_sweep_of_the_papers_rates(tmp_path: Path) -> None:
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    run = vitkit.finetune_run(str(tmp_path / "start"), "digits", recipe="paper", image_size=8)
    run = replace(run, training=replace(run.training, steps=2, batch_size=16))
    out = train_series(run, tmp_path / "tuned")
    found = read_series(out)
    assert [one.learning_rate for one in found.rates] == [0.001, 0.003, 0.01, 0.03]
    assert read_run(out / "final").optimizer.optimizer == "sgd"
    assert vitkit.finetune(str(tmp_path / "start"), "digits", tmp_path / "two", runs=2, minutes=0.01).is_dir()
    assert read_series(tmp_path / "two").run.training.minutes == 0.01


def started(tmp_path: Path, val_fraction: float) -> Run:
    """A run that fine-tunes a model on the digits that it was trained on, with the splits it had there."""
    first = replace(SMALL, splits=Splits(val_fraction=val_fraction))
    training.train(first, tmp_path / "start")
    run = vitkit.finetune_run(str(tmp_path / "start"), "digits")
    assert run.splits.val_fraction == val_fraction
    return replace(run, training=replace(SMALL.training, steps=2))


def test_a_sweep_over_images_that_the_start_has_seen_is_warned_of(tmp_path: Path) -> None:
    hearing = Hearing()
    train_series(started(tmp_path, 0.0), tmp_path / "sweep", SWEEP, listener=hearing)
    assert any("the sweep cannot be trusted to choose" in said for said in hearing.warnings)


def test_a_sweep_over_images_that_were_held_out_of_the_start_is_not_warned_of(tmp_path: Path) -> None:
    hearing = Hearing()
    train_series(started(tmp_path, 0.1), tmp_path / "sweep", SWEEP, listener=hearing)
    assert not any("sweep" in said for said in hearing.warnings)


def test_a_series_that_leaves_the_model_to_its_start_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    run = replace(SMALL, model="", start=StartConfig(str(tmp_path / "start")))
    first = train_series(run, options=SeriesOptions(runs=2))
    assert read_series(first).run.model  # that of the start
    assert train_series(run, options=SeriesOptions(runs=2)) == first
    (tmp_path / "start").rename(tmp_path / "gone")  # what has begun needs no start any more
    assert train_series(run, first, SeriesOptions(runs=2)) == first


def test_a_series_whose_record_leaves_the_model_open_goes_on(tmp_path: Path) -> None:
    """As the record of earlier versions does."""
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    run = replace(SMALL, model="", start=StartConfig(str(tmp_path / "start")))
    out = train_series(run, tmp_path / "runs", SeriesOptions(runs=2))
    record = json.loads((out / "series.json").read_text())
    record["run"]["model"] = ""
    (out / "series.json").write_text(json.dumps(record))
    assert train_series(run, out, SeriesOptions(runs=2)) == out


def test_an_unfinished_series_is_not_said_to_lack_test_images() -> None:
    begun = swept((0.1, 0.5, 1.0))
    assert conclusions(begun) == ["Not all runs have ended yet: vitkit train --resume continues the series."]


def test_a_metric_that_is_not_defined_is_said_to_be_so() -> None:
    score = Score("test", None, None, None, 10)
    ended = replace(
        swept((0.1, 0.5, 1.0)), members=(Member("final", 0.1, 0, score=score, finished=True),), chosen=0.1
    )
    assert conclusions(replace(ended, spread=summarise(ended))) == [
        "The learning rate is 0.1.",
        "Accuracy is not defined on the test images: no label is among them.",
    ]


def test_runs_that_diverged_are_said_where_no_run_has_a_score() -> None:
    lost = Member("seed-0", 0.1, 0, diverged="Step 3: loss nan")
    kept = Member("seed-1", 0.1, 1, finished=True)
    begun = replace(swept((0.1, 0.5, 1.0)), chosen=0.1)
    assert conclusions(replace(begun, members=(lost, replace(lost, folder="seed-1"))))[1:] == [
        "Training diverged in 2 of 2 runs."
    ]
    assert conclusions(replace(begun, members=(lost, kept)))[1:] == [
        "Training diverged in 1 of 2 runs.",
        "There are no test images, so the final model is not evaluated.",
    ]


def test_validation_images_of_the_datas_own_evaluate_the_last_run(tmp_path: Path) -> None:
    hearing = Hearing()
    run = replace(
        SMALL,
        data=str(photos(tmp_path / "data", "train", "val")),
        splits=replace(SMALL.splits, test_fraction=0.0),
    )
    out = train_series(run, tmp_path / "sweep", SWEEP, listener=hearing)
    assert not any("not evaluated" in note for note in hearing.notes)
    assert read_series(out).members[0].score is not None


def test_held_out_images_without_labels_are_not_called_divergence() -> None:
    with pytest.raises(VitkitError, match=r"have no labels to score by: raise --splits.val-fraction"):
        choose_rate(swept((0.1, None, None), (0.2, None, None)))


def test_the_test_images_are_not_decoded_where_they_are_not_looked_at(tmp_path: Path) -> None:
    hearing = Hearing()
    run = replace(SMALL, training=replace(SMALL.training, evaluate_test=False))
    training.train(run, tmp_path / "run", listener=hearing)
    assert "reading val images" in hearing.loops and "reading test images" not in hearing.loops


def test_a_kill_between_link_and_rename_leaves_nothing_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_names(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    out = train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2))
    assert (out / "model.safetensors").samefile(out / "seed-0/model.safetensors")
    whole = (out / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "model.json"):
        (out / name).unlink()
        (out / f".{name}.tmp").write_text("half")
    monkeypatch.setattr("vitkit.jobs.series.series.os.link", no_names)
    train_series(SMALL, out, SeriesOptions(runs=2))
    assert (out / "model.safetensors").read_bytes() == whole
    assert not (out / "model.safetensors").samefile(out / "seed-0/model.safetensors")
    assert not list(out.glob(".*.tmp"))


def test_a_model_that_is_linked_again_leaves_no_second_name(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2))
    (out / "model.json").unlink()
    train_series(SMALL, out, SeriesOptions(runs=2))
    assert (out / "model.json").exists() and not list(out.glob(".*.tmp"))


def test_the_exact_update_of_the_original_is_an_option() -> None:
    """--momentum-dtype bfloat16 makes the optimiser that tests/training/test_optim.py compares with fixture
    k, off unless it is asked for; the first rate of every recipe of the paper is 0."""
    model = create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    for name in ("paper", "finetune-cifar10", "finetune-pets"):
        config = recipe(name).optimizer
        assert config.momentum_dtype == "float32" and learning_rate(config, 0, 500) == 0
        exact = create_optimizer(model, replace(config, momentum_dtype="bfloat16"))
        assert isinstance(exact, SGD) and exact.decay == 0.8984375


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"runs": 0}, "runs is at least 1 and at most 1,000, found 0"),
        ({"runs": 10**30}, "runs is at least 1 and at most 1,000, found 1000000000000"),
        ({"sweep_rates": (0.1, 0.0)}, "sweep_rates are above 0, found 0"),
        ({"sweep_rates": (0.1, 0.1)}, "has a rate twice"),
        ({"sweep_data": "photos"}, "sweep_data has the images of a sweep: give --sweep as well"),
        ({"cross_validate": 1}, "folds from 2, found 1"),
        ({"cross_validate": 3, "runs": 2}, "give one of the two"),
        ({"cross_validate": 3, "sweep": True}, "has seen the test images of all folds but one"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(VitkitError, match=words):
        SeriesOptions(**options)


def test_what_a_run_refuses_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="threads is from 1"):
        train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2), threads=0)
    with pytest.raises(VitkitError, match="give a start"):
        frozen = replace(SMALL, optimizer=OptimizerConfig(freeze="trunk"))
        train_series(frozen, tmp_path / "runs", SWEEP)
    assert not (tmp_path / "runs").exists()


def test_series_that_the_images_do_not_allow_are_refused_at_once(tmp_path: Path) -> None:
    patient = replace(SMALL, training=replace(SMALL.training, patience=2))
    with pytest.raises(VitkitError, match="leave --patience out"):
        train_series(patient, tmp_path / "sweep", SWEEP)
    own = replace(SMALL, data=str(photos(tmp_path / "data", "train", "test")))
    with pytest.raises(VitkitError, match="has a test split of its own"):
        train_series(own, tmp_path / "folds", SeriesOptions(cross_validate=3))
    single = photos(tmp_path / "few")
    for path in [*single.glob("*/*.png")]:
        if path.name not in ("0.png", "1.png"):
            path.unlink()
    with pytest.raises(VitkitError, match="no images to hold out for a sweep"):
        train_series(
            replace(SMALL, data=str(single), splits=replace(SMALL.splits, test_fraction=0)),
            tmp_path / "one",
            SWEEP,
        )


def test_an_unfinished_series_names_the_runs_that_can_be_used_and_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trained = tmp_path / "sweep", training.train
    calls: list[Path] = []

    def stop_before_the_last(run: Run, folder: Path, **options: Any) -> Path:
        calls.append(folder)
        if len(calls) > 2:
            raise InterruptedTraining(f"in {folder}", "again", 15)
        return trained(run, folder, **options)

    monkeypatch.setattr(job, "train", stop_before_the_last)
    with pytest.raises(InterruptedTraining):
        train_series(SMALL, out, SWEEP)
    again = f"the series goes on with: vitkit train --resume {out}"
    words = f"such as {out / 'rate-0.02'} (others: rate-0.001); {again}"
    from_series = replace(SMALL, model="", start=StartConfig(str(out)))
    uses: list[Any] = [load_model, vitkit.evaluate, vitkit.Predictor]
    for use in uses:
        with pytest.raises(VitkitError, match=re.escape(words)):
            use(out)
    with pytest.raises(VitkitError, match=re.escape(words)):
        vitkit.inspect(out, out=tmp_path / "pictures")
    with pytest.raises(VitkitError, match=re.escape(words)):
        training.train(from_series, tmp_path / "run")
    hearing = Hearing()
    assert vitkit.write_report(out, listener=hearing) == out / "report.html"
    assert words in hearing.notes[0]
    load_model(out / "rate-0.02")


def test_a_series_of_folds_has_no_model_of_its_own(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "folds", SeriesOptions(cross_validate=2))
    with pytest.raises(
        VitkitError, match=r"each fold has a model of its own. Name one of its runs, .*fold-1"
    ):
        load_model(out)


def test_a_member_that_has_finished_keeps_no_checkpoints_and_everything_else(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "sweep", SWEEP)
    final = out / "final"
    for member in read_series(out).all_members:
        assert not list((out / member.folder).glob("checkpoints/*"))
        assert read_ended(out / member.folder) is not None
    kept = ("model.safetensors", "model.json", "metrics.jsonl", "evaluation/test.json", "report.html")
    before = {name: (final / name).read_bytes() for name in kept}
    hearing = Hearing()
    training.train(read_run(final), final, resume=True, listener=hearing)  # nothing is computed
    assert before == {name: (final / name).read_bytes() for name in kept}
    assert hearing.rows[0] == ("", [f"This run has finished: {final}"])
    load_model(final)
    assert torch.__version__ in vitkit.write_report(final).read_text()
    with pytest.raises(VitkitError, match="Leave --start-from out"):
        find_start(StartConfig(str(final), start_from="best"))


@pytest.mark.parametrize("removed", [0, 1, 2])
def test_a_kill_while_checkpoints_are_removed_leaves_a_run_that_has_finished(
    removed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the first checkpoint goes, between two, and before the last; then called again."""
    saving = replace(SMALL, training=replace(SMALL.training, checkpoint_every=1, keep=3))
    options = SeriesOptions(sweep_rates=(0.01,))
    whole = train_series(saving, tmp_path / "whole", options)
    remove = checkpoint.remove
    gone: list[Path] = []

    def remove_some(path: Path) -> None:
        if len(gone) == removed:
            raise KeyboardInterrupt
        gone.append(path)
        remove(path)

    monkeypatch.setattr(ended, "remove", remove_some)
    out = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        train_series(saving, out, options)
    monkeypatch.setattr(ended, "remove", remove)
    left = list((out / "final/checkpoints").glob("step-*"))
    assert len(left) == 3 - removed and survey(out / "final").whole == out / "final/checkpoints/step-00000004"
    written = (out / "final/model.safetensors").stat().st_mtime_ns
    train_series(saving, out, options)
    assert (out / "final/model.safetensors").stat().st_mtime_ns == written
    assert not list((out / "final/checkpoints").glob("*"))
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (out / "final" / name).read_bytes() == (whole / "final" / name).read_bytes()


def test_a_member_whose_model_is_lost_is_trained_again_to_the_same_bits(tmp_path: Path) -> None:
    """But no rate: its score is on the disk, and nobody needs its weights."""
    out = train_series(SMALL, tmp_path / "sweep", SWEEP)
    before = {name: (out / "final" / name).read_bytes() for name in ("model.safetensors", "metrics.jsonl")}
    for member in ("final", "rate-0.02"):
        (out / member / "model.safetensors").unlink()
    train_series(SMALL, out, SWEEP)
    assert before == {name: (out / "final" / name).read_bytes() for name in before}
    assert not (out / "rate-0.02/model.safetensors").exists()


def test_a_member_that_diverged_keeps_its_checkpoints(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "sweep", SeriesOptions(sweep_rates=(0.01, 1e30)))
    assert read_series(out).rates[1].diverged and read_ended(out / "rate-1e+30") is None


class Pretended:
    """Stands for training: writes what a run leaves of its images and its model, and scores that are the same
    for every run."""

    def __init__(self) -> None:
        self.trained: list[str] = []
        self.runs: list[Run] = []
        self.stop_at: int | None = None
        """The run that is interrupted as soon as it has begun, from 1."""
        self.scored = {"val": 0.25, "test": 0.5}

    def train(self, run: Run, folder: Path, **_options: Any) -> Path:
        self.trained.append(folder.name)
        self.runs.append(run)
        if len(self.trained) == self.stop_at:
            raise KeyboardInterrupt
        folder.mkdir(exist_ok=True)
        data = find_task(run.task).learning.open_data(run.data, run.splits, run.preprocessing.decode)
        require_same_images(folder, data, data.fingerprint(), "time", SILENT)
        for name in ("model.safetensors", "model.json", "report.html"):
            (folder / name).write_text("{}")
        return folder

    def read_score(self, _folder: Path, split: str, _run: Run) -> Score | None:
        value = self.scored.get(split)
        return None if value is None else Score(split, value, None, 1.0, 8)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    pretended = Pretended()
    monkeypatch.setattr(job, "train", pretended.train)
    monkeypatch.setattr(job, "read_score", pretended.read_score)
    return pretended


def test_rates_are_judged_by_held_out_images_and_folds_by_test_images(
    tmp_path: Path, pretended: Pretended
) -> None:
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    swept = read_series(train_series(run, tmp_path / "sweep", SWEEP))
    assert [one.score.split for one in swept.all_members if one.score] == ["val", "val", "test"]
    assert [made.training.evaluate_test for made in pretended.runs] == [False, False, True]
    del pretended.scored["test"]  # as if a fold had no test images: the others chose its weights
    folds = read_series(train_series(run, tmp_path / "folds", SeriesOptions(cross_validate=3)))
    assert [one.score for one in folds.members] == [None] * 3 and folds.spread is None
    seeds = read_series(train_series(run, tmp_path / "seeds", SeriesOptions(runs=2)))
    assert seeds.spread is not None and seeds.spread.split == "val"


def test_a_sweep_may_have_images_of_its_own(tmp_path: Path, pretended: Pretended) -> None:
    """Judged on their validation split; the last run trains on the images of the run. Both are remembered."""
    tried, other = photos(tmp_path / "tried", "train", "val"), photos(tmp_path / "other", "train", "val")
    run = replace(SMALL, data=str(photos(tmp_path / "all", "train", "test")))
    options = replace(SWEEP, sweep_data=str(tried))
    out = train_series(run, tmp_path / "sweep", options)
    assert [Path(made.data).name for made in pretended.runs] == ["tried", "tried", "all"]
    assert counts(out / "rate-0.02") == {"train": 30, "val": 30}
    assert counts(out / "final") == {"train": 30, "test": 30}
    with pytest.raises(VitkitError, match=r"--sweep-data '.*tried' -> '.*other'"):
        train_series(run, out, replace(SWEEP, sweep_data=str(other)))
    (other / "train/dark").rename(other / "train/black")
    (other / "val/dark").rename(other / "val/black")
    with pytest.raises(VitkitError, match=r"other has other classes than .*all: expected the same names"):
        train_series(run, tmp_path / "new", replace(SWEEP, sweep_data=str(other)))
    assert not (tmp_path / "new").exists()


def test_the_images_of_a_sweep_are_the_same_when_it_goes_on(tmp_path: Path, pretended: Pretended) -> None:
    tried = photos(tmp_path / "tried", "train", "val")
    run = replace(SMALL, data=str(photos(tmp_path / "all", "train", "test")))
    options, pretended.stop_at = replace(SWEEP, sweep_data=str(tried)), 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, tmp_path / "sweep", options)
    (tried / "val/dark/0.png").unlink()
    with pytest.raises(VitkitError, match=r"are not those that .*sweep was started with"):
        train_series(run, tmp_path / "sweep", options)


def add_images(data: Path) -> None:
    for path in data.glob("*/*.png"):
        (path.parent / f"new-{path.name}").write_bytes(path.read_bytes())


def swap_classes(data: Path) -> None:
    (data / "bright").rename(data / "other")
    (data / "dark").rename(data / "bright")
    (data / "other").rename(data / "dark")


def blacken(data: Path) -> None:
    for path in sorted(data.glob("*/*.png"))[::3]:
        Image.new("RGB", (8, 8)).save(path)


KINDS = {
    "sweep": SWEEP,
    "runs": SeriesOptions(runs=3),
    "folds": SeriesOptions(cross_validate=3),
}
CHANGES = {"added": add_images, "swapped": swap_classes, "black": blacken}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("early", [False, True])
def test_a_series_whose_images_changed_does_not_go_on(
    kind: str, change: str, early: bool, tmp_path: Path, pretended: Pretended
) -> None:
    """Begun by this version, or by an early one, which wrote down the images of each run alone."""
    data, out = photos(tmp_path / "data"), tmp_path / "series"
    run, pretended.stop_at = replace(SMALL, data=str(data)), 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, out, KINDS[kind])
    if early:
        (out / "data.json").unlink()
        (out / "image-files.npy").unlink()
    before, trained = (out / "series.json").read_bytes(), list(pretended.trained)
    CHANGES[change](data)
    with pytest.raises(VitkitError, match=r"are not those that .* was started with|changed since"):
        train_series(run, out, KINDS[kind])
    assert pretended.trained == trained and (out / "series.json").read_bytes() == before


def test_a_series_of_an_early_version_goes_on_with_the_images_of_its_runs(
    tmp_path: Path, pretended: Pretended
) -> None:
    out, run = tmp_path / "series", replace(SMALL, data=str(photos(tmp_path / "data")))
    pretended.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, out, KINDS["runs"])
    written = {name: (out / name).read_bytes() for name in ("data.json", "image-files.npy")}
    for name in written:
        (out / name).unlink()
    hearing = Hearing()
    train_series(run, out, KINDS["runs"], listener=hearing)
    assert f"{out} did not say which images it began with: they are those of its 1 runs." in hearing.notes
    assert {name: (out / name).read_bytes() for name in written} == written
    record = read_series(out)
    record = replace(
        record, members=(*record.members[:2], replace(record.members[2], finished=False, score=None))
    )
    (out / "series.json").write_text(json.dumps(to_json(record)))
    for path in out.rglob("data.json"):
        path.unlink()
    with pytest.raises(VitkitError, match="do not say which images they began with"):
        train_series(run, out, KINDS["runs"])


def test_images_that_change_between_two_runs_of_a_series_end_it(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos(tmp_path / "data")

    def train_and_add(run: Run, folder: Path, **options: Any) -> Path:
        made = pretended.train(run, folder, **options)
        add_images(data)
        return made

    monkeypatch.setattr(job, "train", train_and_add)
    with pytest.raises(VitkitError, match="files were added, removed or moved"):
        train_series(replace(SMALL, data=str(data)), tmp_path / "series", KINDS["folds"])
    assert pretended.trained == ["fold-0"]


def test_other_groups_are_other_folds(tmp_path: Path, pretended: Pretended) -> None:
    """The images, their names and labels stay, and so does the first fold: two images of the others are
    exchanged."""
    photos(tmp_path / "data")
    rows = [(str(path.relative_to(tmp_path)), path.parent.name) for path in sorted(tmp_path.rglob("*.png"))]
    table, groups = tmp_path / "list.csv", [number // 2 for number in range(30)]

    def first_fold() -> ImageData:
        lines = [f"{path},{label},{group}" for (path, label), group in zip(rows, groups, strict=True)]
        table.write_text("\n".join(["path,label,patient", *lines]))
        return open_data(str(table), replace(splits, fold=0, folds=3, rule=3))

    splits = Splits(val_fraction=0, group="patient")
    before = first_fold()
    run = replace(SMALL, data=str(table), splits=splits)
    pretended.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, tmp_path / "folds", KINDS["folds"])
    assert before.folds is not None
    one, other = (list(before.folds.fold_of[:15]).index(fold) for fold in (1, 2))  # of the same class
    groups[one], groups[other] = groups[other], groups[one]
    assert first_fold().fingerprint() == before.fingerprint()
    with pytest.raises(VitkitError, match="are not those that"):
        train_series(run, tmp_path / "folds", KINDS["folds"])


def early_folds(out: Path, run: Run, folds: int) -> Path:
    """The record of a cross-validation that an early version has just begun."""
    run = replace(run, splits=replace(run.splits, rule=2))
    options = SeriesOptions(cross_validate=folds)
    out.mkdir()
    members = record.plan_members(run, options, (), run.optimizer.learning_rate)[1]
    record.write_series(out, new_series("", run, options, (), members, True))
    return out


def test_folds_of_an_early_version_go_on_as_they_were_cut_where_they_are_even(
    tmp_path: Path, pretended: Pretended
) -> None:
    data = photos(tmp_path / "data")
    run = replace(SMALL, data=str(data))
    out = early_folds(tmp_path / "even", run, 3)
    train_series(run, out, SeriesOptions(cross_validate=3))
    assert [made.splits.rule for made in pretended.runs] == [2, 2, 2]
    assert train_series(run, tmp_path / "new", SeriesOptions(cross_validate=3))
    assert [made.splits.rule for made in pretended.runs[3:]] == [3, 3, 3]


def test_uneven_folds_of_an_early_version_are_refused(tmp_path: Path, pretended: Pretended) -> None:
    for label in range(20):
        for number in range(2):
            path = tmp_path / f"data/{label:02d}/{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (label, number, 0)).save(path)
    run, options = replace(SMALL, data=str(tmp_path / "data")), SeriesOptions(cross_validate=5)
    out = early_folds(tmp_path / "early", run, 5)
    with pytest.raises(
        VitkitError, match=r"folds of 8, 8, 4, 0, 20 test images are not even.* another --out"
    ):
        train_series(run, out, options)
    assert pretended.trained == [] and not list(out.glob("fold-*"))
    found = read_series(train_series(run, tmp_path / "new", options))
    assert found.spread is not None and found.spread.runs == 5


def test_more_folds_than_images_are_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    with pytest.raises(VitkitError, match="31 folds need as many images"):
        train_series(run, tmp_path / "folds", SeriesOptions(cross_validate=31))
    assert not (tmp_path / "folds").exists()


def test_a_start_on_the_same_images_brings_no_early_folds(tmp_path: Path, pretended: Pretended) -> None:
    run = replace(SMALL, data=str(photos(tmp_path / "data")), splits=Splits(rule=2))
    train_series(run, tmp_path / "folds", SeriesOptions(cross_validate=2))
    train_series(run, tmp_path / "folds", SeriesOptions(cross_validate=2))
    assert [made.splits.rule for made in pretended.runs] == [3, 3]


def test_the_rule_of_dealing_is_about_folds_alone() -> None:
    """A start of an early version held the same images out, so that a sweep can be trusted."""
    assert job._cut(Splits(rule=2)) == job._cut(Splits(rule=3)) != job._cut(Splits(rule=1))
    assert job._cut(Splits(fold=0, folds=2, rule=2)) != job._cut(Splits(fold=0, folds=2, rule=3))


def test_series_begun_together_take_different_folders(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    name = "runs/data-ViT-16x1x2-4-runs"
    options = SeriesOptions(runs=2)
    with lock_folder(Path(name)):  # another one has just begun there
        assert train_series(run, options=options) == Path(f"{name}-2")
        assert train_series(run, options=options) == Path(f"{name}-2")  # what was begun goes on
    with lock_folder(Path(f"{name}-2")):
        assert train_series(run, options=options) == Path(name)
    with lock_folder(Path(name)), pytest.raises(VitkitError, match="Another process is at work in"):
        train_series(run, name, options)


def test_what_killed_processes_were_writing_is_removed(tmp_path: Path, pretended: Pretended) -> None:
    run, out = replace(SMALL, data=str(photos(tmp_path / "data"))), tmp_path / "series"
    train_series(run, out, SeriesOptions(runs=2))
    left = [out / ".series.json.4711.tmp", out / ".data.json.12.tmp", out / "seed-0/.ended.json.4711.tmp"]
    for path in left:
        path.write_text("half")
    (out / "seed-0/ended.json").write_text('{"step": 4, "environment": {}}')
    (out / ".mine.tmp").write_text("of the user")
    train_series(run, out, SeriesOptions(runs=2))
    assert not any(path.exists() for path in left) and (out / ".mine.tmp").exists()


@pytest.mark.parametrize("link", ["seed-1", "seed-1/checkpoints"])
def test_links_that_leave_a_series_are_refused(link: str, tmp_path: Path, pretended: Pretended) -> None:
    run, out = replace(SMALL, data=str(photos(tmp_path / "data"))), tmp_path / "series"
    train_series(run, out, SeriesOptions(runs=2))
    checkpoint = tmp_path / "mine/step-00000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMMIT").write_text("")
    if link == "seed-1":
        (out / link).rename(tmp_path / "seed")
    (out / link).symlink_to(tmp_path / "mine")
    pretended.trained.clear()
    with pytest.raises(VitkitError, match="is a link that leads out of its folder"):
        train_series(run, out, SeriesOptions(runs=2), resume=True)
    assert pretended.trained == [] and (checkpoint / "COMMIT").exists()
