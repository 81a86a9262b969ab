"""Series of runs: sweeps over learning rates, several seeds, all folds, with a start or without."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.photos import saved
from tests.helpers.random_models import same_bits
from tests.helpers.refusals import refused
from tests.helpers.series import SMALL, SWEEP, Pretended, counts, photos
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.data.sources import open_data
from vitkit.jobs import train_run as training
from vitkit.runs.config import StartConfig
from vitkit.runs.folder import kind_of
from vitkit.runs.start import find_start
from vitkit.training.checkpoint import read_ended
from vitkit.training.config import OptimizerConfig

pytestmark = pytest.mark.usefixtures("without_report")
TWICE = vitkit.SeriesOptions(runs=2)


@pytest.fixture(scope="module")
def swept(without_report: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Hearing]:
    """A sweep that has ended, and what was heard of it. Tests change copies of its folder."""
    hearing, folder = Hearing(), tmp_path_factory.mktemp("swept") / "sweep"
    return vitkit.train_series(SMALL, folder, SWEEP, listener=hearing), hearing


def test_a_sweep_holds_images_out_and_leaves_the_test_images_alone(swept: tuple[Path, Hearing]) -> None:
    out, hearing = swept
    series = vitkit.read_series(out)
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
    assert sum("reading test images" in loop for loop in hearing.loops) == 1  # by the last run alone
    page = (out / "report.html").read_text()
    assert "0.001" in page and "chosen" in page and "final/report.html" in page and "<svg" in page


def test_a_finished_member_keeps_all_but_checkpoints(swept: tuple[Path, Hearing], tmp_path: Path) -> None:
    """A member whose model is lost is trained again to the same bits, but no rate: its score is on the disk,
    and nobody needs its weights."""
    out, hearing = Path(shutil.copytree(swept[0], tmp_path / "sweep")), Hearing()
    final = out / "final"
    for member in vitkit.read_series(out).all_members:
        assert not list((out / member.folder).glob("checkpoints/*"))
        assert read_ended(out / member.folder) is not None
    files = ("model.safetensors", "model.json", "metrics.jsonl", "evaluation/test.json", "report.html")
    before = {name: (final / name).read_bytes() for name in files}
    training.train_run(kind_of(final).run(), final, resume=True, listener=hearing)  # nothing is computed
    assert before == {name: (final / name).read_bytes() for name in files}
    assert hearing.rows[0] == ("", [f"This run has finished: {final}"])
    refused("Leave start_from out", find_start, StartConfig(str(final), start_from="best"))
    for member_name in ("final", "rate-0.02"):
        (out / member_name / "model.safetensors").unlink()
    vitkit.train_series(SMALL, out, SWEEP)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert before[name] == (final / name).read_bytes()
    assert not (out / "rate-0.02/model.safetensors").exists()
    assert torch.__version__ in vitkit.write_report(final).read_text()


def test_several_runs_have_other_seeds_and_the_same_splits(tmp_path: Path) -> None:
    run = replace(SMALL, training=replace(SMALL.training, seed=5))
    out = vitkit.train_series(run, tmp_path / "runs", vitkit.SeriesOptions(runs=3))
    series = vitkit.read_series(out)
    assert [member.folder for member in series.members] == ["seed-5", "seed-6", "seed-7"]
    records = [json.loads((out / member.folder / "data.json").read_text()) for member in series.members]
    assert len({record["fingerprint"] for record in records}) == 1
    assert len({(out / member.folder / "model.safetensors").read_bytes() for member in series.members}) == 3
    values = [member.score.value or 0.0 for member in series.members if member.score is not None]
    spread = series.spread
    assert spread is not None and len(values) == 3
    measured = (spread.mean, spread.deviation, spread.lowest, spread.highest)
    assert measured == pytest.approx((np.mean(values), np.std(values, ddof=1), min(values), max(values)))
    # The first is the run that is trained alone, and it stands for the series.
    alone = training.train_run(run, tmp_path / "alone")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (alone / name).read_bytes() == (out / "seed-5" / name).read_bytes()
    assert same_bits(vitkit.load_model(out), vitkit.load_model(alone))
    assert vitkit.evaluate(out).result.accuracy == vitkit.evaluate(out / "seed-5").result.accuracy


def test_each_image_is_tested_once_in_a_cross_validation(tmp_path: Path) -> None:
    out = vitkit.train_series(SMALL, tmp_path / "folds", vitkit.SeriesOptions(cross_validate=3))
    tested: Counter[str] = Counter()
    for number in range(3):
        run = kind_of(out / f"fold-{number}").run()
        test = open_data("digits", run.splits).splits["test"]
        tested.update(test.key(index) for index in range(len(test)))
        assert counts(out / f"fold-{number}")["test"] == len(test)
    assert len(tested) == 1797 and set(tested.values()) == {1}
    series = vitkit.read_series(out)
    assert series.spread is not None and series.spread.runs == 3
    pooled = series.spread.pooled
    assert pooled is not None and pooled.images == 1797
    evaluations = [json.loads((out / f"fold-{k}/evaluation/test.json").read_text()) for k in range(3)]
    assert pooled.right == sum(evaluation["correct"] for evaluation in evaluations)
    assert "Each of 1,797 images was tested once" in (out / "report.html").read_text()
    assert not (out / "model.safetensors").exists()  # no fold is better than another
    refused(r"a model of its own. Name one of its runs, .*fold-1", vitkit.load_model, out)


def test_a_changed_option_is_refused_and_images_may_move(tmp_path: Path, pretended: Pretended) -> None:
    data = photos(tmp_path / "data")
    run = replace(SMALL, data=str(data))
    out = vitkit.train_series(run, tmp_path / "runs", TWICE)
    longer = replace(run, training=replace(SMALL.training, steps=5))
    refused("runs 2 -> 3", vitkit.train_series, run, out, vitkit.SeriesOptions(runs=3))
    refused("steps 4 -> 5", vitkit.train_series, longer, out, TWICE)
    refused("is there already and holds no run", training.train_run, run, out)
    refused("holds no series of runs", vitkit.train_series, run, out / "seed-0", TWICE)
    data.rename(tmp_path / "moved")
    for name in ("report.html", "model.safetensors"):
        (out / "seed-1" / name).unlink()
    vitkit.train_series(replace(run, data=str(tmp_path / "moved")), out, TWICE, resume=True)
    assert pretended.trained == ["seed-0", "seed-1", "seed-1"]
    assert (out / "seed-1/model.safetensors").exists()


def test_images_of_the_datas_own_choose_rates_and_evaluate_the_last_run(tmp_path: Path) -> None:
    """A series with neither test nor validation images is not evaluated."""
    untested, few = replace(SMALL.splits, test_fraction=0.0), {"train": 30, "val": 30}
    for splits in (("train", "val", "test"), ("train", "val"), ()):
        hearing, data = Hearing(), photos(tmp_path / f"data{len(splits)}", *splits)
        run = replace(SMALL, data=str(data), splits=untested)
        out = vitkit.train_series(run, tmp_path / f"sweep{len(splits)}", SWEEP, listener=hearing)
        final = vitkit.read_series(out).members[0]
        assert any("not evaluated" in note for note in hearing.notes) == (not splits)
        assert (final.score is None) == (not splits)
        if splits:
            for folder in ("rate-0.001", "rate-0.02", "final"):
                assert counts(out / folder) == (few | {"test": 30} if "test" in splits else few)
                assert kind_of(out / folder).run().training.select == "best"
    assert vitkit.read_series(out).spread is None and counts(out / "final") == {"train": 30}
    assert "There are no test images" in (out / "report.html").read_text()
    both = (vitkit.train_series, run, tmp_path / "both", replace(SWEEP, runs=2))
    refused("Several runs are compared on test or validation images", *both)


def test_options_that_cannot_be_are_refused() -> None:
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"runs": 0}, "runs is at least 1 and at most 1,000, found 0"),
        ({"runs": 10**30}, "runs: the number 1000000000000"),
        ({"sweep_rates": (0.1, 0.0)}, "sweep_rates is a number above 0, found 0"),
        ({"sweep_rates": (0.1, 0.1)}, "has a rate twice"),
        ({"sweep_data": "photos"}, "sweep_data has the images of a sweep: give sweep as well"),
        ({"cross_validate": 1}, "cross_validate is 2 or more, found 1"),
        ({"cross_validate": 3, "runs": 2}, "give one of the two"),
        ({"cross_validate": 3, "sweep": True}, "has seen the test images of all folds but one"),
    )
    for options, message in cases:
        refused(message, vitkit.SeriesOptions, **options)


def test_what_the_images_do_not_allow_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    patient = replace(SMALL, training=replace(SMALL.training, patience=2))
    frozen = replace(SMALL, optimizer=OptimizerConfig(freeze="backbone"))
    own = replace(SMALL, data=str(photos(tmp_path / "own", "train", "test")))
    mixed = replace(SMALL, data=str(photos(tmp_path / "mixed")))
    few = photos(tmp_path / "few")
    for path in [*few.glob("*/??.png"), *few.glob("*/[2-9].png")]:  # an image of each class is left
        path.unlink()
    single = replace(SMALL, data=str(few), splits=replace(SMALL.splits, test_fraction=0))
    for run, options, message in (
        (frozen, SWEEP, "give a start"),
        (patient, SWEEP, "leave patience out"),
        (own, vitkit.SeriesOptions(cross_validate=3), "has a test split of its own"),
        (mixed, vitkit.SeriesOptions(cross_validate=31), "31 folds need as many images"),
        (single, SWEEP, "no images to hold out for a sweep"),
    ):
        refused(message, vitkit.train_series, run, tmp_path / "runs", options)
    refused("threads is from 1", vitkit.train_series, SMALL, tmp_path / "runs", TWICE, threads=0)
    assert not (tmp_path / "runs").exists()


def test_rates_are_judged_by_held_out_images_folds_by_test(tmp_path: Path, pretended: Pretended) -> None:
    run = replace(SMALL, data=str(photos(tmp_path / "data")))
    swept = vitkit.read_series(vitkit.train_series(run, tmp_path / "sweep", SWEEP))
    assert [member.score.split for member in swept.all_members if member.score] == ["val", "val", "test"]
    del pretended.scored["test"]  # as if a fold had no test images: the others chose its weights
    three = vitkit.SeriesOptions(cross_validate=3)
    folds = vitkit.read_series(vitkit.train_series(run, tmp_path / "folds", three))
    assert [member.score for member in folds.members] == [None] * 3 and folds.spread is None
    seeds = vitkit.read_series(vitkit.train_series(run, tmp_path / "seeds", vitkit.SeriesOptions(runs=2)))
    assert seeds.spread is not None and seeds.spread.split == "val"


def test_a_sweep_may_have_images_of_its_own(tmp_path: Path, pretended: Pretended) -> None:
    """Judged on their validation split; the last run trains on the images of the run. Both are remembered."""
    tried, other = photos(tmp_path / "tried", "train", "val"), photos(tmp_path / "other", "train", "val")
    run = replace(SMALL, data=str(photos(tmp_path / "all", "train", "test")))
    options = replace(SWEEP, sweep_data=str(tried))
    out = vitkit.train_series(run, tmp_path / "sweep", options)
    assert [Path(made.data).name for made in pretended.runs] == ["tried", "tried", "all"]
    assert counts(out / "rate-0.02") == {"train": 30, "val": 30}
    assert counts(out / "final") == {"train": 30, "test": 30}
    options = replace(SWEEP, sweep_data=str(other))
    refused("sweep_data '.*tried' -> '.*other'", vitkit.train_series, run, out, options)
    (other / "train/dark").rename(other / "train/black")
    (other / "val/dark").rename(other / "val/black")
    refused("other has other classes than .*all", vitkit.train_series, run, tmp_path / "new", options)
    assert not (tmp_path / "new").exists()


def test_a_start_is_fine_tuned_with_a_sweep_of_the_papers_rates(tmp_path: Path) -> None:
    start, data = saved("ViT-16x1x2/4", 3, tmp_path / "start", size=8), str(photos(tmp_path / "data"))
    run = vitkit.finetune_run(start, data, recipe="paper", image_size=8, steps=2, batch_size=16)
    out = vitkit.train_series(run, tmp_path / "tuned")
    rates = [member.learning_rate for member in vitkit.read_series(out).rates]
    assert rates == [0.001, 0.003, 0.01, 0.03]
    assert kind_of(out / "final").run().optimizer.optimizer == "sgd"
    assert vitkit.finetune(start, data, tmp_path / "two", runs=2, minutes=0.01).is_dir()
    assert vitkit.read_series(tmp_path / "two").run.training.minutes == 0.01


@pytest.mark.parametrize(("val_fraction", "is_warned"), [(0.0, True), (0.1, False)])
def test_a_sweep_over_images_that_the_start_has_seen_is_warned_of(
    val_fraction: float, is_warned: bool, tmp_path: Path, pretended: Pretended
) -> None:
    """A run that fine-tunes a model on images that it was trained on has the splits that it had there."""
    data, hearing = str(photos(tmp_path / "data")), Hearing()
    first = replace(SMALL, data=data, splits=Splits(val_fraction=val_fraction))
    training.train_run(first, tmp_path / "start")
    run = vitkit.finetune_run(str(tmp_path / "start"), data)
    assert run.splits.val_fraction == val_fraction
    run = replace(run, training=replace(SMALL.training, steps=2))
    vitkit.train_series(run, tmp_path / "sweep", SWEEP, listener=hearing)
    said = any("do not trust the choice of the sweep" in said for said in hearing.warnings)
    assert said == is_warned == any("sweep" in said for said in hearing.warnings)


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_series_with_its_starts_model_is_found(tmp_path: Path, pretended: Pretended) -> None:
    start = StartConfig(saved("ViT-16x1x2/4", 2, tmp_path / "start", size=8))
    run = replace(SMALL, data=str(photos(tmp_path / "data")), model="", start=start)
    first = vitkit.train_series(run, options=TWICE)
    assert first == Path("runs/data-ViT-runs")
    assert vitkit.read_series(first).run.model  # that of the start
    assert vitkit.train_series(run, options=TWICE) == first
    (tmp_path / "start").rename(tmp_path / "gone")  # what has begun needs no start any more
    assert vitkit.train_series(run, first, TWICE) == first
