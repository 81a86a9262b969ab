"""Figures and tables: all of the paper's are there, and every study's runs can be trained."""

from pathlib import Path
from typing import get_args

import pytest

from vitkit.errors import VitkitError
from vitkit.jobs.options import ItemName, StudyOptions
from vitkit.jobs.reproduce.designs import Design, base_of, flops
from vitkit.jobs.reproduce.items import ITEMS
from vitkit.jobs.reproduce.reproduce import Request, make_arms, make_base_run, make_design, reproduce
from vitkit.jobs.study.study import Arm, check_arms
from vitkit.listener import SILENT
from vitkit.runs.config import Run
from vitkit.runs.plan import list_images

STUDIES = tuple(name for name, item in ITEMS.items() if item.design is not None and not item.needs_start)


def arms_of(name: ItemName, folder: Path, data: str = "digits") -> tuple[Design, tuple[Arm, ...]]:
    options = Request(name, 30.0, None, ITEMS[name].seeds, ())
    base, design, _ = make_design(make_base_run(name, None, data, ()), options, folder, SILENT)
    return design, make_arms(base, design, 40)


def test_the_list_has_the_figures_and_tables_of_the_paper() -> None:
    expected = [f"fig{number}" for number in range(2, 15)]
    expected += [f"table{number}" for number in (2, 5, 6, 7, 8, 9)]
    assert list(ITEMS) == list(get_args(ItemName)) == [*expected, "ssl"]
    for name, item in ITEMS.items():
        shows_others = bool(item.pictures) or name in ("fig2", "fig12", "table6", "table9")
        assert (item.design is None) == shows_others
        assert item.conclusion.endswith(".") and item.needs and item.at_paper_size and item.setting


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_every_study_can_be_trained(name: ItemName, tmp_path: Path) -> None:
    _, arms = arms_of(name, tmp_path)
    names = [arm.folder for arm in arms]
    assert len(set(names)) == len(names) > 1
    check_arms([arm for arm in arms if not arm.run.start.start], StudyOptions())
    assert {arm.run.start.start for arm in arms} - {""} <= {
        str(tmp_path / before / "final") for before in names if before.startswith("pretrain-")
    }


@pytest.mark.parametrize("name", STUDIES)
def test_the_claims_of_every_study_are_about_its_arms(name: ItemName, tmp_path: Path) -> None:
    design, arms = arms_of(name, tmp_path)
    names = [arm.folder for arm in arms]
    for claim in design.claims:
        assert len(claim.more) == len(claim.less) > 0
        for arm in (*claim.more, *claim.less):
            matches_pattern = arm.endswith("*") and any(folder.startswith(arm[:-1]) for folder in names)
            assert arm in names or matches_pattern, arm
    assert design.claims


def test_families_cost_about_the_same_an_image(tmp_path: Path) -> None:
    design, _ = arms_of("fig4", tmp_path)
    costs = {variant.line: flops(variant.run, 10) for variant in design.variants}
    assert set(costs) == {"ViT", "BiT", "hybrid"}
    assert max(costs.values()) < 2 * min(costs.values())


def test_smaller_subsets_have_fewer_images_and_stop_by_validation(tmp_path: Path) -> None:
    _, arms = arms_of("fig4", tmp_path)
    counts = {}
    for arm in arms:
        counts[arm.folder] = len(list_images(arm.run).splits["train"])
        assert arm.run.training.select == "best" and (arm.run.training.evaluate_every or 0) == 4
    assert [counts[f"bit-{part}"] for part in ("0.03", "0.1", "0.3", "1")] == [38, 126, 377, 1_257]


def test_arms_of_the_same_compute_have_the_same_flops(tmp_path: Path) -> None:
    design, arms = arms_of("fig5", tmp_path)
    steps = {arm.folder: arm.run.training.steps or 0 for arm in arms}
    costs = {variant.name: flops(variant.run, 10) * steps[variant.name] for variant in design.variants}
    for length in (1, 2, 4):
        same = [cost for name, cost in costs.items() if name.endswith(f"-{length}x")]
        assert len(same) == 3 and max(same) < 1.03 * min(same)  # steps are whole numbers
    assert costs["vit-4x"] == 4 * costs["vit-1x"]


def test_all_other_arms_have_the_same_steps(tmp_path: Path) -> None:
    for name in ("fig3", "fig4", "fig8", "fig9", "fig13", "table7", "table8"):
        _, arms = arms_of(name, tmp_path)
        assert {arm.run.training.steps for arm in arms} == {40}, name


def test_muon_and_sgd_have_sweeps_of_their_own(tmp_path: Path) -> None:
    _, arms = arms_of("table7", tmp_path)
    rates = {arm.folder: arm.series.sweep_rates for arm in arms}
    assert rates["vit-muon"] == rates["vit-adamw"] == rates["bit-adamw"] != rates["bit-sgd"]
    assert all(len(tried) == 3 for tried in rates.values())


def test_a_base_that_is_no_plain_vit_is_refused(tmp_path: Path) -> None:
    for model in ("BiT-R1-1x0.5", "R50+ViT-B/16", "ViT-64x4x4/4-gap"):
        with pytest.raises(VitkitError):
            base_of(Run(data="digits", model=model), 10, 100, tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("fig7", "needs a trained model"), ("table5", "needs a trained model"), ("fig2", "start")],
)
def test_what_needs_a_start_says_so(name: ItemName, message: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=message):
        reproduce(name, out=tmp_path / "out")
    with pytest.raises(VitkitError, match=message):
        reproduce(name, out=tmp_path / "out", plan=True)
    assert not (tmp_path / "out").exists()


def test_an_arm_or_an_item_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="Did you mean 'table8'"):
        reproduce("table88")  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match=r"no arm named 'lerned'\. Did you mean 'learned'"):
        reproduce("table8", only=["lerned"], out=tmp_path / "out")
