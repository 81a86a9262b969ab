"""Arms in the folder of a study: brought to their end, gone on with, and never those of another study."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vitkit
from tests.helpers.refusals import refused
from tests.helpers.series import before_each_run
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.jobs.options import StudyOptions
from vitkit.jobs.study import study as studies
from vitkit.jobs.study.study import Arm, Study
from vitkit.runs.budget import Pace
from vitkit.runs.config import Architecture, Run, StartConfig
from vitkit.runs.machine import InterruptedTraining
from vitkit.runs.plan import Opened, list_images
from vitkit.runs.series_record import Series
from vitkit.training.config import TrainingConfig

SMALL = small_run(2, warmup_steps=0)
ONCE = vitkit.SeriesOptions()
ARMS = (
    Arm("base", "the base", SMALL, ONCE),
    Arm("mean", "pool mean", replace(SMALL, architecture=Architecture(pool="mean")), ONCE),
)

pytestmark = pytest.mark.usefixtures("without_report")


def study(*arms: Arm, **options: Any) -> Study:
    return studies.new_study("test", "a command", options, arms or ARMS)


def complete(made: Study, out: Path, listener: Hearing | None = None) -> list[Series]:
    with made.claim(out) as folder:
        options = StudyOptions(listener=listener or Hearing(), command=made.command)
        return studies.complete_arms(made.arms, folder, options)


def test_arms_are_series_and_a_stopped_study_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def stop_the_second(folder: Path) -> None:
        begun.append(f"{folder.parent.name}/{folder.name}")
        if len(begun) == 2:
            raise InterruptedTraining("after step 1", "vitkit train --resume x", 15)

    swept = replace(ARMS[1], series=vitkit.SeriesOptions(sweep_rates=(0.01, 0.02)))
    out, made, hearing = tmp_path / "study", study(ARMS[0], swept), Hearing()
    before_each_run(monkeypatch, stop_the_second)
    with pytest.raises(InterruptedTraining, match=r"arm 2 of 2, pool mean; .*: the same command") as caught:
        complete(made, out)
    assert caught.value.exit_code == 128 + 15
    all_series = complete(made, out, hearing)
    of_the_sweep = ["mean/rate-0.01", "mean/rate-0.02", "mean/final"]
    assert begun == ["base/final", of_the_sweep[0], *of_the_sweep]
    assert all(series.ended for series in all_series) and all_series[1].run.architecture.pool == "mean"
    with_weights = {str(path.parent.relative_to(out)) for path in out.glob("*/*/model.safetensors")}
    assert with_weights == {"base/final", "mean/final"}  # weights of the runs of a sweep are not
    assert any(note.startswith("arm 2 of 2, pool mean: ") for note in hearing.notes)
    assert any(loop.startswith("pool mean: ") for loop in hearing.loops)
    assert [folder.parent.name for folder, _, _ in hearing.runs] == ["mean"] * 3 and hearing.measured
    assert [arm.label for arm in studies.read_study(out).arms] == ["the base", "pool mean"]


def test_an_arm_that_diverges_does_not_end_the_study(tmp_path: Path) -> None:
    wild = replace(SMALL, optimizer=replace(SMALL.optimizer, learning_rate=1e36))
    swept = Arm("swept", "rates too high", SMALL, vitkit.SeriesOptions(sweep_rates=(1e35, 1e36)))
    arms = (Arm("wild", "rate 1e36", wild, ONCE), swept, ARMS[0])
    for _ in range(2):  # the same again where it has ended
        hearing = Hearing()
        all_series = complete(study(*arms), tmp_path / "study", hearing)
        finished = [any(member.finished for member in series.members) for series in all_series]
        assert finished == [False, False, True]
        assert any(said.startswith("rate 1e36: Training diverged") for said in hearing.warnings)
        assert any("None of the learning rates" in said for said in hearing.warnings)


def test_a_study_with_other_options_is_refused_by_their_names(tmp_path: Path) -> None:
    out = tmp_path / "study"
    with study(grid=False).claim(out):
        pass
    loading = replace(SMALL.loading, workers=0)
    with study(*(replace(arm, run=replace(arm.run, loading=loading)) for arm in ARMS), grid=False).claim(out):
        pass  # how images are loaded may change
    longer = tuple(replace(arm, run=replace(SMALL, training=TrainingConfig(steps=5))) for arm in ARMS)
    twice = tuple(replace(arm, series=vitkit.SeriesOptions(runs=2)) for arm in ARMS)
    for made, said in (
        (study(grid=True), "grid False -> True"),
        (study(*longer, grid=False), "steps 2 -> 5"),
        (study(*twice, grid=False), "seeds 1 -> 2"),
        (study(ARMS[0], grid=False), "arms: base, mean -> base"),
        (replace(study(grid=False), kind="other"), "kind of study: test -> other"),
    ):
        refused(f"(?s)holds another study.*{said}", complete, made, out)
    assert not (out / "base").exists()
    record = json.loads((out / "study.json").read_text())
    record["arms"][1]["run"]["architecture"]["pool"] = "max"
    (out / "study.json").write_text(json.dumps(record))
    refused(re.escape("pool 'max' -> 'mean'"), complete, study(grid=False), out)
    (tmp_path / "letter.txt").write_text("dear")
    refused("is there already and holds no study", complete, study(), tmp_path)
    refused(r"is no study: it has no study\.json", studies.read_study, tmp_path)


def test_an_impossible_arm_is_refused_by_name_before_anything_is_trained() -> None:
    model = replace(SMALL, model="BiT-R50x1", architecture=Architecture(pool="mean"))
    arms = [ARMS[0], Arm("bit", "model BiT-R50x1", model, ONCE)]
    refused("model BiT-R50x1: .* has no pool", studies.check_arms, arms, StudyOptions())


def test_runs_that_train_alike_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Run] = []

    def measure(run: Run, *_: Any) -> Pace:
        timed.append(run)
        return Pace(float(len(timed)), 0.5)

    parts = {"images": None, "config": None, "device": None}
    monkeypatch.setattr(studies, "plan_run", lambda run, *_, **__: SimpleNamespace(run=run, **parts))
    monkeypatch.setattr(studies, "measure_pace", measure)
    other_rate = replace(SMALL, optimizer=replace(SMALL.optimizer, learning_rate=0.5))
    longer = replace(SMALL, training=replace(SMALL.training, steps=9, seed=3, select="last"))
    larger = replace(SMALL, training=replace(SMALL.training, batch_size=7))
    begun = replace(SMALL, start=StartConfig("another/arm"))
    runs = {"a": SMALL, "b": ARMS[1].run, "c": other_rate, "d": longer, "e": larger, "f": begun}
    paces = studies.measure_paces(runs, StudyOptions(listener=Hearing()), Opened(SMALL, list_images(SMALL)))
    assert [paces[name].step for name in runs] == [1, 2, 1, 1, 3, 1]
    assert [run.start.start for run in timed] == [""] * 3
    frozen = replace(begun, optimizer=replace(SMALL.optimizer, freeze="backbone", freeze_layers=1))
    studies.measure_paces({"g": frozen}, StudyOptions(listener=Hearing()), Opened(SMALL, list_images(SMALL)))
    # Without a start nothing can be frozen.
    assert (timed[-1].optimizer.freeze, timed[-1].optimizer.freeze_layers) == ("nothing", 0)


def test_an_arm_is_planned_with_the_runs_of_its_sweep() -> None:
    arm = Arm("base", "the base", SMALL, vitkit.SeriesOptions(sweep_rates=(0.1, 0.2, 0.3), runs=2))
    single = replace(arm, folder="single", series=vitkit.SeriesOptions(sweep_rates=(0.1,)))
    options, opened = StudyOptions(listener=Hearing()), Opened(SMALL, list_images(SMALL))
    paces = dict.fromkeys(("base", "single"), Pace(1.5, 0.5))
    planned, one_run = studies.plan_arms([arm, single], options, opened, paces=paces).arms
    assert (planned.name, planned.label, planned.rates) == ("base", "the base", (0.1, 0.2, 0.3))
    assert (planned.runs, planned.steps, one_run.runs) == (5, SMALL.training.steps, 1)
    seconds = studies.run_seconds(SMALL, paces["base"], opened.images)
    assert planned.seconds == 5 * one_run.seconds == 5 * seconds
