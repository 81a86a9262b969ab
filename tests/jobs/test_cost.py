"""`vitkit cost` and `vitkit models`: parameters, compute and memory of models that nobody trains."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from vitkit.jobs.cost import count_table6, matching
from vitkit.models.measure import parameters


def printed(cli: Cli, *arguments: str) -> str:
    return cli(["cost", *arguments]).out


def numbers(cli: Cli, *arguments: str) -> Any:
    return json.loads(printed(cli, *arguments, "--json"))


def test_patches_that_do_not_fill_the_image_are_named(cli: Cli) -> None:
    assert "fill no patch" not in printed(cli, "ViT-Ti/16", "ViT-Ti/14")
    text = printed(cli, "ViT-16x1x2/16", "--image-size", "40", "48")
    assert "8 rows below and 0 columns at the right of the images fill no patch." in text


def test_the_compute_of_a_training(cli: Cli) -> None:
    given = ("ViT-L/16", "--epochs", "14", "--images", "303000000")
    [cost] = numbers(cli, *given)
    assert cost["training_flops"] == 3 * cost["forward_flops"]
    [half] = numbers(cli, *given, "--utilization", "0.2")
    assert half["h100_days"] == pytest.approx(2 * cost["h100_days"])
    assert cost["h100_days"] == pytest.approx(cost["pretraining_flops"] / 989e12 / 0.4 / 86400)


def test_table_6_is_the_papers_to_a_percent() -> None:
    rows = count_table6().to_json()
    assert len(rows) == 18
    ours, ratio = pytest.approx(4258, abs=0.1), pytest.approx(0.999, abs=5e-4)
    assert rows[5] == {"model": "ViT-H/14", "epochs": 14, "paper": 4262, "ours": ours, "ratio": ratio}
    bounds = {("ViT-B/32", 7): (2.0, 2.1), ("R50+ViT-L/16", 7): (-3.15, -3.0)}
    for row in rows:
        low, high = bounds.get((row["model"], row["epochs"]), (-1.0, 1.0))
        assert low <= 100 * (row["ratio"] - 1) <= high, row


def test_a_checkpoint_is_costed_as_it_is(tmp_path: Path, cli: Cli) -> None:
    vitkit.save_model(vitkit.create_model("ViT-32x1x2/8", 5, (32, 16)), tmp_path / "mine")
    [cost] = numbers(cli, str(tmp_path / "mine"))
    assert cost["image_size"] == [32, 16]
    assert cost["parameters"] == parameters(vitkit.model_config("ViT-32x1x2/8", 5, (32, 16)))
    [larger] = numbers(cli, str(tmp_path / "mine"), "--image-size", "64", "--num-classes", "7")
    assert larger["parameters"] == parameters(vitkit.model_config("ViT-32x1x2/8", 7, 64))


def test_models_lists_every_family_in_a_narrow_table(cli: Cli) -> None:
    lines = cli(["models"]).out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(vitkit.list_models()) <= rows.keys()
    assert all(len(rows[name].rstrip()) <= 100 for name in vitkit.list_models())


def test_models_by_patterns_parts_and_composed_names() -> None:
    assert matching([]) == vitkit.list_models()
    assert matching(["ViT-b/32"]) == ["ViT-b/32"]  # not ViT-B/32
    assert matching(["bit-r152*"]) == ["BiT-R152x1", "BiT-R152x2", "BiT-R152x4"]
    assert matching(["r152", "BiT-R152x1", "ViT-H/14"])[3:] == ["ViT-H/14"]
    assert matching(["ViT-96x6x3/4-gap"]) == ["ViT-96x6x3/4-gap"]
    refused("width 10 cannot be divided among 3 heads", matching, ["ViT-10x6x3/4"])
