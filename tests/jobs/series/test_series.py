"""Series of runs: sweeps over learning rates, several seeds, all folds."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.helpers.series import SMALL, SWEEP, Pretended, counts, photos
from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError
from vitkit.jobs import series as job
from vitkit.jobs import train_run as training
from vitkit.jobs.recipes import recipe
from vitkit.jobs.series import train_series
from vitkit.runs.config import Run
from vitkit.runs.folder import kind_of
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import read_series
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import SGD, create_optimizer, learning_rate
from vitkit.weights.create import create_model

pytestmark = pytest.mark.usefixtures("without_report")


def test_a_sweep_holds_images_out_and_leaves_the_test_images_alone(tmp_path: Path) -> None:
    hearing = Hearing()
    out = train_series(SMALL, tmp_path / "sweep", SWEEP, listener=hearing)
    series = read_series(out)
    assert [member.folder for member in series.all_members] == ["rate-0.001", "rate-0.02", "final"]
    for member in series.rates:
        folder = out / member.folder
        assert counts(folder) == {"train": 1257, "val": 180, "test": 360}
        evaluated = {path.name.split(".")[0] for path in (folder / "evaluation").iterdir()}
        assert evaluated == {"val"}
        # Judged as the last run will end, which has no validation: by its last weights.
        assert kind_of(folder).run().training.select == "last"
        recorded = json.loads((folder / "evaluation/val.json").read_text())
        assert member.score is not None and member.score.value == recorded["accuracy"]
        assert list(member.score.interval or ()) == recorded["accuracy_interval"]
    assert counts(out / "final") == {"train": 1437, "test": 360}
    scores = {member.learning_rate: member.score for member in series.rates if member.score is not None}
    best = max(scores, key=lambda rate: (scores[rate].value or 0.0, -(scores[rate].tie or 0.0)))
    final = kind_of(out / "final").run()
    assert series.chosen == best == final.optimizer.learning_rate
    assert final.training == SMALL.training and final.splits.val_fraction == 0
    tested = json.loads((out / "final/evaluation/test.json").read_text())
    assert series.spread is not None and series.spread.mean == tested["accuracy"]
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
    series = read_series(out)
    assert [member.folder for member in series.members] == ["seed-5", "seed-6", "seed-7"]
    records = [json.loads((out / member.folder / "data.json").read_text()) for member in series.members]
    assert len({record["fingerprint"] for record in records}) == 1
    assert len({(out / member.folder / "model.safetensors").read_bytes() for member in series.members}) == 3
    values = [member.score.value or 0.0 for member in series.members if member.score is not None]
    assert series.spread is not None and len(values) == 3
    assert series.spread.mean == pytest.approx(np.mean(values))
    assert series.spread.deviation == pytest.approx(np.std(values, ddof=1))
    assert (series.spread.lowest, series.spread.highest) == (min(values), max(values))
    # The first is the run that is trained alone.
    alone = training.train_run(run, tmp_path / "alone")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (alone / name).read_bytes() == (out / "seed-5" / name).read_bytes()


def test_a_sweep_is_done_once_for_several_runs(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "both", replace(SWEEP, runs=2))
    series = read_series(out)
    assert [member.folder for member in series.all_members] == ["rate-0.001", "rate-0.02", "seed-0", "seed-1"]
    rates = {kind_of(out / member.folder).run().optimizer.learning_rate for member in series.members}
    assert rates == {series.chosen}


def test_each_image_is_tested_once_in_a_cross_validation(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "folds", SeriesOptions(cross_validate=3))
    tested: Counter[str] = Counter()
    for number in range(3):
        run = kind_of(out / f"fold-{number}").run()
        test = open_data("digits", run.splits).splits["test"]
        tested.update(test.key(index) for index in range(len(test)))
        assert counts(out / f"fold-{number}")["test"] == len(test)
    assert len(tested) == 1797 and set(tested.values()) == {1}
    series = read_series(out)
    assert series.spread is not None and series.spread.runs == 3
    assert not (out / "model.safetensors").exists()  # no fold is better than another
    pooled = series.spread.pooled
    assert pooled is not None and pooled.images == 1797
    evaluations = [json.loads((out / f"fold-{k}/evaluation/test.json").read_text()) for k in range(3)]
    assert pooled.right == sum(evaluation["correct"] for evaluation in evaluations)
    assert "Each of 1,797 images was tested once" in (out / "report.html").read_text()


def test_what_has_ended_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, trained = tmp_path / "sweep", []
    train = training.train_run

    def counted(run: Run, folder: Path, **options: Any) -> Path:
        trained.append(folder.name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return train(run, folder, **options)

    monkeypatch.setattr(job, "train_run", counted)
    with pytest.raises(KeyboardInterrupt):
        train_series(SMALL, out, SWEEP)
    assert [member.finished for member in read_series(out).all_members] == [True, False, False]
    train_series(SMALL, out, SWEEP)
    train_series(SMALL, out, SWEEP)
    assert trained == ["rate-0.001", "rate-0.02", "rate-0.02", "final"]


def test_a_changed_option_is_refused_with_both_values(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "runs", SeriesOptions(runs=2))
    with pytest.raises(VitkitError, match="runs 2 -> 3"):
        train_series(SMALL, out, SeriesOptions(runs=3))
    longer = replace(SMALL, training=replace(SMALL.training, steps=5))
    with pytest.raises(VitkitError, match=r"steps 4 -> 5"):
        train_series(longer, out, SeriesOptions(runs=2))
    with pytest.raises(VitkitError, match="is there already and holds no run"):
        training.train_run(SMALL, out)
    with pytest.raises(VitkitError, match="holds no series of runs"):
        train_series(SMALL, out / "seed-0", SeriesOptions(runs=2))


def test_a_single_rate_needs_no_sweep(tmp_path: Path) -> None:
    out = train_series(SMALL, tmp_path / "one", SeriesOptions(sweep_rates=(0.005,)))
    assert {path.name for path in out.iterdir() if path.is_dir()} == {"final"}
    assert kind_of(out / "final").run().optimizer.learning_rate == 0.005
    assert counts(out / "final") == {"train": 1437, "test": 360}
    train_series(SMALL, out, SeriesOptions(sweep_rates=(0.005,)))  # the same series


def test_a_validation_split_of_the_datas_own_chooses_and_stays(tmp_path: Path) -> None:
    data = photos(tmp_path / "data", "train", "val", "test")
    out = train_series(replace(SMALL, data=str(data)), tmp_path / "sweep", SWEEP)
    for folder in ("rate-0.001", "rate-0.02", "final"):
        assert counts(out / folder) == {"train": 30, "val": 30, "test": 30}
        assert kind_of(out / folder).run().training.select == "best"


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


def test_the_test_images_are_not_decoded_where_they_are_not_looked_at(tmp_path: Path) -> None:
    hearing = Hearing()
    run = replace(SMALL, training=replace(SMALL.training, evaluate_test=False))
    training.train_run(run, tmp_path / "run", listener=hearing)
    assert "reading val images" in hearing.loops and "reading test images" not in hearing.loops


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
    ("options", "message"),
    [
        ({"runs": 0}, "runs is at least 1 and at most 1,000, found 0"),
        ({"runs": 10**30}, "runs: the number 1000000000000"),
        ({"sweep_rates": (0.1, 0.0)}, "sweep_rates is a number above 0, found 0"),
        ({"sweep_rates": (0.1, 0.1)}, "has a rate twice"),
        ({"sweep_data": "photos"}, "sweep_data has the images of a sweep: give sweep as well"),
        ({"cross_validate": 1}, "cross_validate is 2 or more, found 1"),
        ({"cross_validate": 3, "runs": 2}, "give one of the two"),
        ({"cross_validate": 3, "sweep": True}, "has seen the test images of all folds but one"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitkitError, match=message):
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
    with pytest.raises(VitkitError, match="leave patience out"):
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


def test_rates_are_judged_by_held_out_images_and_folds_by_test_images(
    tmp_path: Path, pretended: Pretended
) -> None:
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    swept = read_series(train_series(run, tmp_path / "sweep", SWEEP))
    assert [member.score.split for member in swept.all_members if member.score] == ["val", "val", "test"]
    assert [made.training.evaluate_test for made in pretended.runs] == [False, False, True]
    del pretended.scored["test"]  # as if a fold had no test images: the others chose its weights
    folds = read_series(train_series(run, tmp_path / "folds", SeriesOptions(cross_validate=3)))
    assert [member.score for member in folds.members] == [None] * 3 and folds.spread is None
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
    with pytest.raises(VitkitError, match=r"sweep_data '.*tried' -> '.*other'"):
        train_series(run, out, replace(SWEEP, sweep_data=str(other)))
    (other / "train/dark").rename(other / "train/black")
    (other / "val/dark").rename(other / "val/black")
    with pytest.raises(VitkitError, match=r"other has other classes than .*all: expected the same names"):
        train_series(run, tmp_path / "new", replace(SWEEP, sweep_data=str(other)))
    assert not (tmp_path / "new").exists()
