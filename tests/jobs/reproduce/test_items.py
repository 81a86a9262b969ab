"""Figures and tables: all of the paper's are there, with its numbers, and every run can be trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest

import vitkit
from tests.helpers.refusals import refused
from vitkit.jobs.options import ItemName, StudyOptions
from vitkit.jobs.reproduce.designs import Variant, base_of, flops
from vitkit.jobs.reproduce.items import ITEMS, TABLES
from vitkit.jobs.reproduce.reproduce import Request, make_arms, make_base_run, make_design, reproduce
from vitkit.jobs.study.study import Arm, check_arms
from vitkit.listener import SILENT
from vitkit.runs.plan import list_images

STUDIES = tuple(name for name, item in ITEMS.items() if item.design and not item.needs_start)


def arms_of(name: ItemName, folder: Path, data: str = "digits") -> tuple[Sequence[Variant], tuple[Arm, ...]]:
    options = Request(name, 30.0, None, 3, ())
    base, variants, _ = make_design(make_base_run(name, None, data, ()), options, folder, SILENT)
    return variants, make_arms(base, variants, 40)


def test_the_list_has_the_figures_and_tables_of_the_paper() -> None:
    expected = [f"fig{number}" for number in range(2, 15) if number != 12]
    expected += [f"table{number}" for number in (2, 5, 6, 7, 8, 9)]
    assert list(ITEMS) == list(get_args(ItemName)) == [*expected, "ssl"]
    for name, item in ITEMS.items():
        shows_others = bool(item.pictures) or name in ("fig2", "table6", "table9")
        assert (not item.design) == shows_others
        assert item.conclusion.endswith(".") and item.needs and item.at_paper_size and item.setting


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_can_be_trained_and_claims_what_it_trains(name: ItemName, tmp_path: Path) -> None:
    _, arms = arms_of(name, tmp_path)
    names = [arm.folder for arm in arms]
    assert len(set(names)) == len(names) > 1
    check_arms([arm for arm in arms if not arm.run.start.start], StudyOptions())
    assert {arm.run.start.start for arm in arms} - {""} <= {
        str(tmp_path / before / "final") for before in names if before.startswith("pretrain-")
    }
    assert ITEMS[name].claims
    for claim in ITEMS[name].claims:
        assert len(claim.more) == len(claim.less) > 0
        for arm in (*claim.more, *claim.less):
            matches_pattern = arm.endswith("*") and any(folder.startswith(arm[:-1]) for folder in names)
            assert arm in names or matches_pattern, arm


def test_families_cost_the_same_and_smaller_subsets_stop_by_validation(tmp_path: Path) -> None:
    variants, arms = arms_of("fig4", tmp_path)
    costs = {variant.line: flops(variant.run, 10) for variant in variants}
    assert set(costs) == {"ViT", "BiT", "hybrid"}
    assert max(costs.values()) < 2 * min(costs.values())
    counts = {arm.folder: len(list_images(arm.run).splits["train"]) for arm in arms}
    assert all(arm.run.training.select == "best" and arm.run.training.evaluate_every == 4 for arm in arms)
    assert [counts[f"bit-{part}"] for part in ("0.03", "0.1", "0.3", "1")] == [38, 126, 377, 1_257]
    variants, arms = arms_of("fig5", tmp_path)
    steps = {arm.folder: arm.run.training.steps or 0 for arm in arms}
    costs = {variant.name: flops(variant.run, 10) * steps[variant.name] for variant in variants}
    for length in (1, 2, 4):
        same = [cost for name, cost in costs.items() if name.endswith(f"-{length}x")]
        assert len(same) == 3 and max(same) < 1.03 * min(same)  # steps are whole numbers
    assert costs["vit-4x"] == 4 * costs["vit-1x"]


def test_all_other_arms_have_the_same_steps_and_muon_and_sgd_sweeps_of_their_own(tmp_path: Path) -> None:
    for name in ("fig3", "fig4", "fig8", "fig9", "fig13", "table7", "table8"):
        _, arms = arms_of(name, tmp_path)
        assert {arm.run.training.steps for arm in arms} == {40}, name
        if name == "table7":
            rates = {arm.folder: arm.series.sweep_rates for arm in arms}
            assert rates["vit-muon"] == rates["vit-adamw"] == rates["bit-adamw"] != rates["bit-sgd"]
            assert all(len(tried) == 3 for tried in rates.values())


def test_a_base_that_is_no_plain_vit_is_refused(tmp_path: Path) -> None:
    for model in ("BiT-R1-1x0.5", "R50+ViT-B/16", "ViT-64x4x4/4-gap"):
        run = vitkit.Run(data="digits", model=model)
        refused("The base of a study is a plain ViT|No model is named", base_of, run, 10, 100, tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fig7", {}, "needs a trained model"),
        ("table5", {"plan": True}, "needs a trained model"),
        ("fig2", {}, "start"),
        ("table88", {}, "Did you mean 'table8'"),
        ("table8", {"only": ["lerned"]}, r"no arm named 'lerned'\. Did you mean 'learned'"),
    ],
)
def test_what_lacks_is_named(name: ItemName, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(message, reproduce, name, out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_every_row_has_a_number_for_each_heading() -> None:
    for numbers in TABLES.values():
        assert {len(row) for row in numbers.rows.values()} == {len(numbers.headings) - 1}
    assert len(TABLES["table6"].rows) == len(TABLES["table5"].rows) == 18
    sizes = TABLES["data-sizes"].rows
    for name, numbers_of_size in sizes.items():
        of_imagenet = TABLES["table5"].rows[f"{name}, ImageNet"]
        assert numbers_of_size == pytest.approx(of_imagenet, rel=0, nan_ok=True)
