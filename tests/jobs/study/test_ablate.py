"""Arms made of options, trained with the same seeds, and the words, table and figure of their comparison."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest

import vitkit
import vitkit.jobs.train as series_job
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.data.config import Augmentation, Splits
from vitkit.evaluation.statistics import PairedDifference, paired_difference
from vitkit.jobs.recipes import OTHER_RATES, recipe
from vitkit.jobs.study.ablate import Ablation, explain_rates, make_arms
from vitkit.jobs.study.study import Arm, ArmResult, Comparison, StudyPlan, arm_table, conclusions
from vitkit.result import Table
from vitkit.runs.config import Architecture, Run, StartConfig, option_value
from vitkit.runs.folder import kind_of
from vitkit.runs.machine import InterruptedTraining
from vitkit.training.config import TrainingConfig

SMALL = replace(small_run(4, warmup_steps=0), augmentation=Augmentation(crop_area=None, flip=False))

pytestmark = pytest.mark.usefixtures("without_report")


class Design(NamedTuple):
    levels: Mapping[str, tuple[str, ...]]
    arms: Sequence[Arm]

    @property
    def labels(self) -> list[str]:
        return [arm.label for arm in self.arms]

    @property
    def folders(self) -> list[str]:
        return [arm.folder for arm in self.arms]


def designed(vary: Mapping[str, Sequence[Any]] | Sequence[str], run: Run = SMALL, **options: Any) -> Design:
    default: dict[str, Any] = {"grid": False, "seeds": 3, "fixed_rate": False, "rates": None}
    return Design(*make_arms(run, vary, **default | options))


def ablate(*given: Any, **options: Any) -> Ablation:
    ablation = vitkit.ablate(*given, **options)
    assert isinstance(ablation, Ablation)
    return ablation


def test_one_option_at_a_time_is_changed_against_the_base() -> None:
    design = designed(["position=learned,none,learned_2d", "pool=token,mean"])
    assert design.labels == ["the base", "position none", "position learned_2d", "pool mean"]
    assert design.folders == ["base", "position-none", "position-learned_2d", "pool-mean"]
    assert design.arms[0].run == SMALL
    assert design.arms[3].run == replace(SMALL, architecture=Architecture(pool="mean"))
    assert design.levels == {"position": ("learned", "none", "learned_2d"), "pool": ("token", "mean")}


def test_a_grid_has_every_combination_the_base_first() -> None:
    design = designed({"position": ["none", "learned"], "pool": ["token", "mean"]}, grid=True)
    assert design.labels == ["the base", "pool mean", "position none", "position none, pool mean"]
    assert design.arms[-1].run.architecture == Architecture(position="none", pool="mean")


def test_the_value_of_the_base_need_not_be_listed_and_the_same_run_is_one_arm() -> None:
    """The recipe's own mixup, 0, is compared with all the same. The name of the model stands for learned
    positions, which can be said otherwise too."""
    design = designed({"mixup": [0.2, "0.4"]})
    assert design.levels == {"mixup": ("0", "0.2", "0.4")}
    assert [option_value(arm.run, "mixup") for arm in design.arms] == [0.0, 0.2, 0.4]
    models = ["ViT-16x1x2/4", "ViT-16x1x2x64/4", "ViT-16x1x2x32/4"]
    design = designed({"position": ["learned", "none", "none"], "model": models})
    assert design.labels == ["the base", "position none", "model ViT-16x1x2x32/4"]


def test_settings_can_be_joined_to_a_value() -> None:
    design = designed(["optimizer=adamw,adam+weight-decay=0,sgd+learning_rate=0.1+weight_decay=0"])
    adam, sgd = (arm.run.optimizer for arm in design.arms[1:])
    # Adam refuses the base's decay: the two are right only together.
    assert (adam.optimizer, adam.weight_decay) == ("adam", 0.0)
    assert (sgd.optimizer, sgd.learning_rate, sgd.weight_decay) == ("sgd", 0.1, 0.0)
    assert design.labels[2] == "optimizer sgd, learning_rate 0.1, weight_decay 0"
    assert design.arms[2].folder == "optimizer-sgd-learning_rate-0.1-weight_decay-0"


def test_folders_differ_where_a_file_system_ignores_case_and_signs() -> None:
    """A plus stands in the names of models too."""
    design = designed(["model=ViT-Ti/16,R26+ViT-S/32"])
    assert [arm.run.model for arm in design.arms[1:]] == ["ViT-Ti/16", "R26+ViT-S/32"]
    assert design.folders[1:] == ["model-ViT-Ti-16", "model-R26-ViT-S-32"]
    start = replace(SMALL, start=StartConfig("base.npz"))
    design = designed({"start": ["a/b", "A+b", "a b", "x" * 300]}, run=start, fixed_rate=True)
    assert len({name.casefold() for name in design.folders}) == 5
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{,98}", name) for name in design.folders)


TIMED = replace(SMALL, training=TrainingConfig(minutes=3))


def test_what_cannot_be_varied_is_refused() -> None:
    cases: tuple[tuple[list[str], dict[str, Any], str], ...] = (
        (["position=learnt"], {}, "position: expected one of 'learned', .*, found 'learnt'"),
        (["label_smoothing=2"], {}, "label_smoothing is a number from 0 to below 1"),
        (["optimizer=sgd+momentun=0.5"], {}, "Did you mean 'momentum'"),
        (["position"], {}, "an option and its values, as in position=learned,none, found 'position'"),
        (["position=learned"], {}, "position has the value learned in the base already"),
        (["data=a,b"], {}, "data cannot be varied: .* same test images"),
        (["position=none+seed=3"], {}, "seed cannot be varied: .*seeds"),
        (["learning_rate=0.1,0.2"], {}, "vary learning_rate with fixed_rate"),
        ([], {}, "Which option is to be varied"),
        (["optimizer=sgd+weight_decay=0", "weight_decay=0.2"], {"grid": True}, "two values set weight_decay"),
        (["pool=mean"], {"fixed_rate": True, "rates": (0.1,)}, "give one of the two"),
        (["optimizer=sgd+learning_rate=0.1"], {"rates": (0.1,)}, "leave rates out"),
        (["pool=mean"], {"rates": ()}, "rates are numbers above 0, found none"),
        (["pool=mean"], {"seeds": 0}, "seeds is at least 1"),
        (["pool=mean"], {"run": TIMED}, "give steps or epochs"),
    )
    for vary, options, said in cases:
        refused(said, designed, vary, **options)


def test_each_arm_tries_the_rates_of_its_recipe_or_those_around_its_own() -> None:
    design = designed(["optimizer=sgd+learning_rate=0.3"], seeds=2)
    assert [arm.series.sweep_rates for arm in design.arms] == [(0.00333, 0.01, 0.03), (0.1, 0.3, 0.9)]
    assert all(arm.series.runs == 2 for arm in design.arms)
    assert "several learning rates (" in explain_rates(design.arms[0])
    finetuned = replace(recipe("finetune-cifar10"), data="digits", start=StartConfig("a.npz"))
    design = designed(["freeze=backbone"], run=finetuned)
    assert {arm.series.sweep_rates for arm in design.arms} == {OTHER_RATES}
    assert all(f"{rate:g}" in explain_rates(design.arms[0]) for rate in OTHER_RATES)
    design = designed(["pool=mean"], rates=(0.2, 0.1))
    assert {arm.series.sweep_rates for arm in design.arms} == {(0.2, 0.1)}
    (base, _) = designed(["pool=mean"], rates=(0.2,)).arms
    assert explain_rates(base) == "Every arm was trained at a learning rate of 0.2."
    design = designed(["learning_rate=0.02"], fixed_rate=True)
    assert [arm.series.sweeps for arm in design.arms] == [False, False]


def test_arms_are_compared_seed_by_seed_and_those_that_diverged_are_told(tmp_path: Path) -> None:
    """One arm learns nothing, one diverges, and one differs in nothing that matters: the seeds, the order of
    images and all that is drawn are shared. The p of those that are compared are adjusted together."""
    longer = replace(SMALL, training=replace(SMALL.training, steps=40))
    vary: dict[str, Sequence[Any]] = {"learning_rate": [1e-7, 1e36], "log_every": [3]}
    ablation = ablate(longer, vary, seeds=2, fixed_rate=True, out=tmp_path)
    base, (slow, wild, same) = ablation.comparison.base, ablation.comparison.arms
    assert same.difference is not None and slow.difference is not None
    assert (same.difference.mean, same.difference.interval, same.adjusted_p) == (0.0, (0.0, 0.0), 1.0)
    assert same.scores == base.scores and set(same.scores) == {"0", "1"}
    assert slow.difference.mean < -0.2 and slow.adjusted_p == 2 * slow.difference.p < 0.5
    assert wild.diverged == (0, 1) and wild.difference is None and wild.adjusted_p is None
    # As the runs themselves say, seed by seed.
    series = vitkit.read_series(tmp_path / slow.folder)
    assert {str(member.seed): member.score.value for member in series.members if member.score} == slow.scores
    expected = np.mean([slow.scores[seed] - base.scores[seed] for seed in ("0", "1")])
    assert slow.difference.mean == pytest.approx(expected)
    page = (tmp_path / "report.html").read_text()
    assert "learning_rate 1e+36: not compared, because training diverged" in page and "<svg" in page
    for place in ("base", "log_every-3", "log_every-3/seed-1"):
        assert f'href="{place}/report.html"' in page
    json.dumps(ablation.to_json())


def test_each_arm_is_trained_with_the_rate_that_did_best_on_held_out_images(tmp_path: Path) -> None:
    hearing = Hearing()
    quietly: dict[str, Any] = {"quiet": True, "listener": hearing}
    ablation = ablate(SMALL, {"pool": ["mean"]}, seeds=1, rates=(0.001, 0.02), out=tmp_path, **quietly)
    assert not (hearing.notes or hearing.rows or hearing.loops)
    for arm in (ablation.comparison.base, *ablation.comparison.arms):
        series = vitkit.read_series(tmp_path / arm.folder)
        assert [member.folder for member in series.all_members] == ["rate-0.001", "rate-0.02", "final"]
        assert arm.learning_rate == series.chosen
        assert arm.end_of_sweep == ("lowest" if series.chosen == 0.001 else "highest")
        assert kind_of(tmp_path / arm.folder / "final").run().optimizer.learning_rate == series.chosen
        assert not (tmp_path / arm.folder / "rate-0.001/evaluation/test.json").exists()
    page = (tmp_path / "report.html").read_text()
    assert "this is about these weights only" in page
    assert "Every arm tried several learning rates (0.001, 0.02 for the base) on images held" in page


def test_a_grid_has_a_table_of_means_and_its_own_options_and_images(tmp_path: Path) -> None:
    def grid(*pools: str, **options: Any) -> Ablation:
        given = {"grid": True, "seeds": 1, "fixed_rate": True, "out": tmp_path / "study"}
        return ablate(SMALL, {"position": ["none"], "pool": pools}, **given | options)

    ablation = grid("mean")
    assert len(ablation.comparison.arms) == 3
    assert "position learned, pool token" in ablation.base
    page = (tmp_path / "study/report.html").read_text()
    assert "Mean accuracy by value" in page and "pool mean" in page
    (table,) = ablation.sections()[1].blocks
    means = [f"{arm.mean:.1%}" for arm in (ablation.comparison.base, *ablation.comparison.arms)]
    assert isinstance(table, Table)
    assert table.rows == (("learned", *means[:2]), ("none", *means[2:]))
    refused(r"vary\.pool: \['token', 'mean'\] -> \['token', 'max'\]", grid, "max")
    other = vitkit.train(replace(SMALL, splits=Splits(test_fraction=0.3)), tmp_path / "other")
    for file in (other / "evaluation").glob("test.*"):
        (tmp_path / "study/pool-mean/final/evaluation" / file.name).write_bytes(file.read_bytes())
    refused("images that the other arms were tested on", grid, "mean")


def test_an_arm_that_cannot_be_trained_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    wide = replace(SMALL, architecture=Architecture(layer_scale=0.1))
    untested, out = replace(SMALL, splits=Splits(test_fraction=0.0)), tmp_path / "study"
    refused("model BiT-R50x1: BiT-R50x1 has no layer_scale", ablate, wide, ["model=BiT-R50x1"], out=out)
    refused("give splits_test_fraction", ablate, untested, ["pool=mean"], seeds=1, out=out)
    assert not out.exists()


@pytest.mark.usefixtures("in_an_empty_folder")
def test_a_folder_is_found_again_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = InterruptedTraining("after step 1", "vitkit train --resume x", 15)
    monkeypatch.setattr(series_job, "train_run", Mock(side_effect=stopped))
    for pool in ("mean", "max", "mean"):
        with pytest.raises(InterruptedTraining):
            ablate(SMALL, {"pool": [pool]}, seeds=1, fixed_rate=True)
    first = "digits-ViT-16x1x2-4-ablation"
    assert sorted(path.name for path in Path("runs").iterdir()) == [first, f"{first}-2"]


def test_a_plan_counts_runs_and_trains_nothing(in_an_empty_folder: None) -> None:
    plan = vitkit.ablate(SMALL, {"pool": ["mean"]}, seeds=2, rates=(0.1, 0.2, 0.3), plan=True)
    assert isinstance(plan, StudyPlan) and [arm.runs for arm in plan.arms] == [5, 5]
    assert "With 2 seeds on 360 test images, a difference of" in plan.summary()
    assert not list(Path.cwd().iterdir())


DRAW = np.random.default_rng(3)
BASE = (DRAW.random((3, 400)) < 0.8).astype(float)
WORSE = BASE * (DRAW.random((3, 400)) < 0.9)
ALIKE = np.where(DRAW.random((3, 400)) < 0.05, 1 - BASE, BASE)


def arm(label: str, scores: np.ndarray, p: float | None = None) -> ArmResult:
    means = {str(seed): float(row.mean()) for seed, row in enumerate(scores)}
    difference = None if p is None else paired_difference(BASE, scores)
    return ArmResult(label.replace(" ", "-"), label, 0.01, means, (), None, difference, p)


ARMS = (arm("position none", WORSE, 0.0001), arm("pool mean", ALIKE, 0.8))
COMPARISON = Comparison("accuracy", "test", 400, (0, 1, 2), arm("the base", BASE), ARMS)


def test_a_difference_that_was_found_and_none_and_the_same_answers_are_told_apart() -> None:
    worse, alike, _ = conclusions(COMPARISON)
    difference = COMPARISON.arms[0].difference
    assert difference is not None
    low, high = (f"{100 * end:+.1f}" for end in difference.interval)
    assert worse == (
        f"position none: {-100 * difference.mean:.1f} points worse than the base (95 % interval {low} to "
        f"{high}, adjusted p below 0.001)."
    )
    assert alike.startswith("pool mean: no difference found, ")
    assert "would have been found in 8 of 10 studies of this size." in alike


def test_seeds_that_diverged_are_told() -> None:
    both = paired_difference(BASE[:2], WORSE[:2])
    two = ArmResult("a", "rate 3", 3.0, {"0": 0.8, "2": 0.7}, (1,), None, both, 0.2)
    none = ArmResult("b", "rate 9", None, {}, (0, 1, 2))
    said = conclusions(replace(COMPARISON, arms=(two, none)))
    assert said[0].endswith("Only 2 seeds finished in both.")
    assert said[1] == "rate 9: not compared, because training diverged with every seed of rate 9."
    rows = arm_table(replace(COMPARISON, arms=(two, none))).rows
    assert rows[1][-1] == "80.0%, diverged, 70.0%"
    assert rows[2][1] == "–" and set(rows[2][2:7]) == {"–"}
    base = replace(none, label="the base")
    alone = replace(two, difference=None)
    assert "every seed of the base" in conclusions(replace(COMPARISON, base=base, arms=(alone,)))[0]
    lost = replace(COMPARISON, images=0, base=base, arms=(none,))
    assert conclusions(lost)[0].startswith("Training diverged in every run: there is nothing to compare.")


def test_a_rate_at_the_end_of_a_sweep_is_told() -> None:
    base, none = (replace(arm, end_of_sweep="highest") for arm in (COMPARISON.base, COMPARISON.arms[0]))
    said = conclusions(replace(COMPARISON, base=base, arms=(none, COMPARISON.arms[1])))
    assert said[2].startswith("The highest learning rate that was tried was the best for the base, position")
    assert not any("lowest" in sentence for sentence in said)


@pytest.mark.parametrize(("images", "shown"), [(400, "+0.1 to"), (5_000, "+0.12 to")])
def test_many_images_are_told_to_a_hundredth_of_a_point(images: int, shown: str) -> None:
    difference = PairedDifference(3, images, 0.002, 1e-7, 1e-7, (0.00123, 0.003), 0.01, 0.001)
    arms = (replace(COMPARISON.arms[0], difference=difference),)
    assert shown in conclusions(replace(COMPARISON, images=images, arms=arms))[0]
