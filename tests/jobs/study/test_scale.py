"""The scale lab: points along an axis, a prediction that is written before it is tested, and what is said."""

import itertools
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from PIL import Image

import vitkit.jobs.study.scale as job
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.helpers.series import before_each_run
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.data.config import Augmentation, Splits
from vitkit.errors import NonFiniteError
from vitkit.evaluation.statistics import Point
from vitkit.jobs.options import StudyOptions
from vitkit.jobs.recipes import recipe as named_recipe
from vitkit.jobs.study import study as studies
from vitkit.jobs.study.scale import Design, Measured, Scale, base_run, conclude, propose_recipe, scale
from vitkit.jobs.study.study import Arm, StudyPlan
from vitkit.listener import SILENT, Listener
from vitkit.models.config import ViTConfig
from vitkit.models.measure import training_flops
from vitkit.runs.budget import Pace
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.plan import Opened, list_images
from vitkit.training.config import TrainingConfig

SMALL = replace(
    small_run(8),
    augmentation=Augmentation(crop_area=None, flip=False),
    splits=Splits(val_fraction=0.1, test_fraction=0.2),
)

pytestmark = pytest.mark.usefixtures("without_report")


def measure_law(out: Path | None = None, **changes: Any) -> Scale:
    given: dict[str, Any] = {"points": 5, "threads": 1, "out": out, "recipe": SMALL}
    law = scale("digits", **given | changes)
    assert isinstance(law, Scale)
    return law


class Whole(NamedTuple):
    """A study that nobody stopped."""

    law: Scale
    heard: Hearing
    was_predicted: list[bool]
    """Whether the prediction had been said before the training of each point."""


@pytest.fixture(scope="module")
def whole(without_report: None, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Complete a study once for all tests that only look at one, or at a copy."""
    hearing, said = Hearing(), list[bool]()

    with pytest.MonkeyPatch.context() as patched:
        before_each_run(patched, lambda _: said.append("The law predicts" in " ".join(hearing.notes)))
        law = measure_law(tmp_path_factory.mktemp("finished") / "law", listener=hearing)
    return Whole(law, hearing, said)


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """Measure a hundredth of a second a step and a tenth a validation; lists what was measured."""
    measured: list[Run] = []

    def measure(runs: Mapping[str, Run], machine: StudyOptions, opened: Opened) -> dict[str, Pace]:
        measured.append(next(iter(runs.values())))
        return dict.fromkeys(runs, Pace(0.01, 0.1))

    monkeypatch.setattr(studies, "measure_paces", measure)
    return measured


def points(recipe: Run = SMALL, listener: Listener = SILENT, **changes: Any) -> tuple[list[float], list[Arm]]:
    """Make the points of a study that is as long as its recipe."""
    run, design = base_run("digits", recipe, "", listener), Design(**{"points": 5, **changes})
    opened = job._open_images(run, design, StudyOptions(listener=listener))
    return job._make_points(design, opened, run.training.steps or 0)


def plan(**changes: Any) -> StudyPlan:
    given: dict[str, Any] = {"points": 5, "recipe": SMALL, "plan": True}
    planned = scale("digits", **given | changes)
    assert isinstance(planned, StudyPlan)
    return planned


def test_images_are_trained_on_by_the_recipe_for_their_size(tmp_path: Path) -> None:
    for side, recipe in ((12, "small-images"), (32, "small-images-conv"), (300, "photos")):
        for file, colour in (("cat/1", "black"), ("cat/2", "red"), ("dog/1", "blue"), ("dog/2", "white")):
            path = tmp_path / str(side) / f"{file}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (side, side), colour).save(path)
        assert propose_recipe(str(tmp_path / str(side)), SILENT) == recipe
    assert base_run("digits", "", "", SILENT).model == named_recipe("digits").model


def test_points_along_data_are_parts_of_the_training_images_alone() -> None:
    places, arms = points(points=6)
    splits = [list_images(arm.run).splits for arm in arms]
    counts = [len(images["train"]) for images in splits]
    assert places == list(map(float, counts))
    assert counts[-1] == 1257  # all that validation and test leave of 1,797
    assert counts[-1] / counts[-2] == pytest.approx(3, rel=0.01)
    assert counts[-2] / counts[0] == pytest.approx(10**1.5, rel=0.05)
    for split in ("train", "val", "test"):
        keys = [[images[split].key(i) for i in range(len(images[split]))] for images in splits]
        for few, more in itertools.pairwise(keys):
            assert set(few) < set(more) if split == "train" else few == more
    assert {arm.run.training.steps for arm in arms} == {8}
    assert {arm.run.training.select for arm in arms} == {"best"}


def test_equal_passes_are_steps_in_proportion_and_equally_many_validations() -> None:
    run = replace(SMALL, training=replace(SMALL.training, steps=2000))
    places, arms = points(run, hold="epochs")
    steps = [arm.run.training.steps or 0 for arm in arms]
    assert steps == [round(2000 * x / places[-1]) for x in places]
    intervals = [arm.run.training.evaluate_every or 0 for arm in arms]
    validations = [math.ceil(count / every) for count, every in zip(steps, intervals, strict=True)]
    assert max(validations) - min(validations) <= 6  # an interval is a whole number of steps
    assert arms[0].run.optimizer.warmup_steps < arms[-1].run.optimizer.warmup_steps


def test_points_along_steps_are_trainings_of_their_own() -> None:
    run = replace(SMALL, training=replace(SMALL.training, steps=950, evaluate_every=10))
    run = replace(run, optimizer=replace(run.optimizer, warmup_steps=95))
    places, arms = points(run, along="steps")
    assert places == [10, 24, 56, 134, 317, 950]
    assert [arm.run.training.steps for arm in arms] == places
    assert [arm.run.optimizer.warmup_steps for arm in arms] == [1, 2, 6, 13, 32, 95]
    assert {arm.run.splits.subset for arm in arms} == {None}


def test_points_along_size_keep_the_shape_of_the_model() -> None:
    places, arms = points(replace(SMALL, model="ViT-128x8x4x256/4"), along="size")
    configs = [arm.run.architecture.build_config(arm.run.model, 10, arm.run.preprocessing) for arm in arms]
    assert places == [float(training_flops(config, 8 * 16)) for config in configs]
    assert configs[-2].width == 128  # the recipe's own is the last one that the law is fitted to
    assert arms[-2].run == job._with_length(replace(arms[-2].run, model="ViT-128x8x4x256/4"), 8, 8, 1257)
    targets = [places[-2] * factor for factor in (10**-1.5, 10**-1.125, 10**-0.75, 10**-0.375, 1, 3)]
    for place, target, config in zip(places, targets, configs, strict=True):
        assert place == pytest.approx(target, rel=0.3)
        assert isinstance(config, ViTConfig)
        assert config.mlp_dim == 2 * config.width
        assert 8 <= config.width / config.depth <= 32  # 16 in the recipe
        assert config.width % config.num_heads == 0


def test_what_no_law_can_be_measured_with_is_refused(paced: list[Run]) -> None:
    cases: tuple[tuple[dict[str, Any], dict[str, Any], str], ...] = (
        ({"model": "R1-1x0.5+ViT-64x4x4/8"}, {"along": "size"}, "Transformer on patches of pixels grows"),
        ({"model": "BiT-R1-1x0.5"}, {"along": "size"}, "Transformer on patches of pixels grows"),
        ({"model": "ViT-64x4x4/8-conv"}, {"along": "size"}, "Transformer on patches of pixels grows"),
        ({}, {"along": "size"}, "points are the same: ViT-16x1x2/4 is too small"),
        ({"training": TrainingConfig(steps=20)}, {"along": "steps"}, "are the same: 20 steps are too few"),
        (
            {"splits": Splits(val_fraction=0.1, test_fraction=0.6)},
            {},
            "fewer than one for each of 10 classes: expected 949 training",
        ),
        ({"splits": replace(SMALL.splits, subset="0.5")}, {}, "leave subset out"),
        ({"splits": replace(SMALL.splits, test_fraction=0.0)}, {}, "give splits_test_fraction"),
        ({"training": TrainingConfig(minutes=1)}, {}, "give budget, the time of all points"),
        ({}, {"points": 4}, "points is from 5 to 30, found 4"),
        ({}, {"seeds": 0}, "seeds is at least 1"),
        ({}, {"budget": "soon"}, "budget is a time such as 45m, 2h or 1h30m, found 'soon'"),
        ({}, {"budget": "10s"}, r"budget of 10 s is too small: the fewest .*, 79, .* take 3\d s here"),
        ({"start": StartConfig("runs/x")}, {"along": "size"}, "leave start out"),
        ({}, {"along": "steps", "hold": "epochs"}, "hold epochs is for along data"),
    )
    for run, changes, message in cases:
        refused(message, plan, recipe=replace(SMALL, **run), **changes)


def test_a_start_brings_its_model_and_a_warning(paced: list[Run], whole: Whole) -> None:
    start = whole.law.folder / "data-06"
    run = base_run("digits", "", start, SILENT)
    assert run.model == "ViT-16x1x2/4"
    assert run.optimizer.learning_rate == 5e-4  # that of vitkit finetune
    for along, is_warned in (("data", True), ("steps", False)):
        hearing = Hearing()
        run = replace(SMALL, training=replace(SMALL.training, steps=950), start=StartConfig(str(start)))
        plan(along=along, recipe=run, listener=hearing)
        assert any("was trained on these images" in warning for warning in hearing.warnings) == is_warned


def test_a_budget_is_read_as_people_write_it() -> None:
    times = {"45m": 2700, "2h": 7200, "1h30m": 5400, "90s": 90, "1.5h": 5400, "1d 2h": 93600}
    assert {text: Design(budget=text).budget_seconds for text in times} == times


def test_a_plan_is_printed_and_no_folder_made(tmp_path: Path, cli: Cli) -> None:
    options = "scale digits --recipe digits --points 5 --model ViT-16x1x2/4 --image-size 8 --steps 10 --plan"
    line = [*options.split(), "--out", str(tmp_path / "law")]
    said = cli([*line, "--seeds", "3"]).text
    assert "data-05 449 training images its own 3 10" in said and "6 arms, 18 runs, about" in said
    arms = json.loads("{" + cli([*line, "--json"]).out.partition("{")[2])["arms"]
    assert [(arm["name"], arm["steps"]) for arm in arms] == [(f"data-0{n}", 10) for n in range(1, 7)]
    assert not (tmp_path / "law").exists()


@pytest.mark.parametrize("along", ["data", "steps"])
def test_a_budget_is_used_and_not_exceeded(along: str, paced: list[Run]) -> None:
    fitting = plan(along=along, budget="30m", seeds=2)
    spent = math.fsum(arm.seconds for arm in fitting.arms)
    assert spent <= 1800
    longer = replace(SMALL, training=replace(SMALL.training, steps=fitting.arms[-1].steps + 60))
    assert math.fsum(arm.seconds for arm in plan(along=along, recipe=longer, seeds=2).arms) > 1800
    assert len(paced) == 2  # once for each plan, whatever the number of points


def test_the_prediction_is_said_before_the_held_out_point_is_trained(whole: Whole) -> None:
    assert whole.was_predicted == [False] * 5 + [True]
    (note,) = (note for note in whole.heard.notes if "The law predicts" in note)
    law = whole.law
    assert f"predicts {law.shown(law.prediction.error)} ({law.interval(law.prediction)})" in note
    names = {path.name for path in law.folder.iterdir() if path.is_file()}
    assert names == {".lock", "report.html", "study.json"}


def test_a_budget_is_measured_once(tmp_path: Path, paced: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(SMALL, training=replace(SMALL.training, batch_size=256))  # so that few steps are a pass
    hearing = Hearing()
    first = measure_law(tmp_path / "law", budget="28s", recipe=run, quiet=True, listener=hearing)
    assert not (hearing.notes or hearing.rows or hearing.loops)
    assert first.steps > job.FEWEST_STEPS
    monkeypatch.setattr(studies, "measure_paces", None)  # whoever measured again would fail
    assert measure_law(tmp_path / "law", budget="28s", recipe=run) == first
    refused("budget '28s' -> left out", measure_law, tmp_path / "law", recipe=run)


def test_a_point_that_diverges_is_left_out(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = Path(shutil.copytree(whole.law.folder, tmp_path / "law"))
    before_each_run(monkeypatch, Mock(side_effect=NonFiniteError("the loss is no number")))
    assert replace(measure_law(copied), folder=whole.law.folder) == whole.law  # which is read
    shutil.rmtree(copied / "data-06")
    scale = measure_law(copied)
    assert scale.held_out.point is None and scale.beyond is None
    assert any(sentence.endswith("; training diverged.") for sentence in scale.headline())
    assert "1,257 training images: training diverged in 1 run, left out." in scale.remarks()
    shutil.rmtree(copied / "data-02")
    refused(r"5 places or more, found 4.* diverged at 31 training images", measure_law, copied)


def test_five_of_six_points_are_enough() -> None:
    errors = {x: Point(x, (x**-0.5,), 0.01) for x in (1, 2, 4, 8, 16)}
    points = [Measured(f"{x:g} steps", f"steps-{x:g}", x, point, 0) for x, point in errors.items()]
    lost, last = Measured("3 steps", "steps-3", 3.0, None, 1), Measured("48 steps", "steps-48", 48.0, None, 0)
    assert len(conclude(Path("runs/x"), SMALL, Design(), [*points, lost, last]).fit.points) == 5


def result(errors: list[float], held_out: float, noise: float | None = 0.005) -> Scale:
    """Make the result of five points and a held-out one, as the job does."""
    places = [100.0, 240.0, 560.0, 1330.0, 3160.0, 9480.0]
    *measured, last = (
        Measured(f"{x:,.0f} training images", f"data-{n}", x, Point(x, (error,), noise), 0)
        for n, (x, error) in enumerate(zip(places, [*errors, held_out], strict=True), 1)
    )
    law = conclude(Path("x"), SMALL, Design(points=5), [*measured, last])
    return law if noise is not None else replace(law, is_fraction=False, metric="loss")


LAW = [0.5, 0.35, 0.25, 0.18, 0.13]


def test_what_is_said_of_a_law_that_holds() -> None:
    scale = result(LAW, 0.087)
    said = " ".join(scale.headline())
    assert "91.3% accuracy came out, inside the interval" in said
    assert said.endswith(
        "EXTRAPOLATION: three times as many images would reach about 93.9% accuracy by the law (95 % "
        "interval 90.7% to 97.5%: from no further gain to one as fast as through the last points)."
    )
    assert scale.beyond is not None and scale.beyond.x == 28_440
    flat = " ".join(result([0.5, 0.4, 0.36, 0.345, 0.34], 0.342).headline())
    assert "would reach 65.8% accuracy as now (95 % interval 65.0% to 67.2%: the last points show" in flat
    said = " ".join(result([3.0, 2.5, 2.1, 1.8, 1.55], 1.3, noise=None).headline())
    assert "1.3 loss came out, inside" in said
    assert "%" not in said.replace("95 % interval", "")


def test_a_law_that_does_not_hold_promises_nothing() -> None:
    cases: tuple[tuple[list[float], float, str], ...] = (
        (LAW, 0.3, "the held-out point lies outside"),
        ([0.2, 0.25, 0.3, 0.35, 0.4], 0.4, "the error"),
        ([0.3] * 5, 0.3, "the error"),
    )
    for errors, held_out, reason in cases:
        scale = result(errors, held_out)
        said = " ".join(scale.headline())
        assert f"The law does not hold here: {reason}" in said
        assert ("OUTSIDE of the interval" in said) == (errors is LAW)
        assert "EXTRAPOLATION" not in said and scale.beyond is None


@pytest.mark.parametrize("noise", [0.001, 0.01])
def test_nothing_is_said_about_ten_times_more(noise: float) -> None:
    """Points on a straight line in log x are within their noise of a law, which promises too little there."""
    straight = [0.8 - 0.08 * math.log(x / 100) for x in (100, 240, 560, 1330, 3160, 9480)]
    scale = result(straight[:5], straight[5], noise)
    assert "ten times" not in " ".join(scale.headline())
    assert scale.beyond is None or scale.beyond.holds(0.8 - 0.08 * math.log(284.4))
