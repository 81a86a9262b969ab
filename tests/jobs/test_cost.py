"""`vitkit cost` and `vitkit models`: parameters, compute and memory of models that nobody trains."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitkit.cli.main import run
from vitkit.jobs.cost import JFT_IMAGES, matching
from vitkit.models.measure import forward_flops, parameters, training_flops, training_memory
from vitkit.models.zoo import list_models, model_config
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["cost", *arguments]) == 0
    return capsys.readouterr().out


def numbers(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def test_patches_that_do_not_fill_the_image_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "ViT-Ti/61")
    assert "ViT-Ti/61: 41 rows below and 41 columns at the right of the images fill no patch." in text
    assert "Did you mean ViT-Ti/16?" in text
    assert "fill no patch" not in printed(capsys, "ViT-Ti/16", "ViT-Ti/14")
    assert "8 rows below and 0 columns" in printed(capsys, "ViT-16x1x2/16", "--image-size", "40", "48")


def test_one_model_in_numbers_and_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    [cost] = numbers(capsys, "ViT-B/16", "--batch-size", "32", "--num-classes", "10")
    config = model_config("ViT-B/16", 10)
    assert cost["parameters"] == parameters(config)
    assert cost["tokens"] == 197
    assert cost["training_flops"] == 3 * cost["forward_flops"] == 3 * forward_flops(config, head=True)
    assert cost["training_memory"]["float32"]["weights"] == 4 * parameters(config)
    assert "h100_days" not in cost
    text = printed(capsys, "ViT-B/16")
    assert "86,567,656" in text and "memory of 128 images" in text
    assert "average" not in text and "H100" not in text
    text = printed(capsys, "ViT-B/16", "R50+ViT-B/16", "BiT-R50x1")
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert rows["ViT-B/16"][1:3] == ["86,567,656", "197"]
    assert rows["BiT-R50x1"][1:3] == ["25,549,352", "–"]
    assert "R50+ViT-B/16" in rows


@pytest.mark.parametrize(
    "arguments",
    ["ViT-B/16 --image-size 384", "ViT-B/16 --image-size 384 384", "--image-size 384 384 ViT-B/16"],
)
def test_image_sizes_as_people_write_them(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    [cost] = numbers(capsys, *arguments.split())
    assert (cost["image_size"], cost["tokens"]) == ([384, 384], 577)


def test_the_compute_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("ViT-L/16", "--epochs", "14", "--images", "303000000")
    [cost] = numbers(capsys, *given)
    assert cost["pretraining_flops"] == pytest.approx(1567e18, rel=0.005)
    [half] = numbers(capsys, *given, "--utilization", "0.2")
    assert half["h100_days"] == pytest.approx(2 * cost["h100_days"])
    assert cost["h100_days"] == pytest.approx(cost["pretraining_flops"] / 989e12 / 0.4 / 86400)
    assert "1,567" in printed(capsys, *given)


def test_what_is_stored_for_each_weight(capsys: pytest.CaptureFixture[str]) -> None:
    [cost] = numbers(capsys, "ViT-Ti/16", "--optimizer", "sgd", "--average")
    expected = training_memory(model_config("ViT-Ti/16"), 128, average=True)
    memory = cost["training_memory"]["float32"]
    assert memory["optimizer_state"] == memory["average"] == memory["weights"] == expected.weights


def test_table_6_is_the_papers_to_a_percent(capsys: pytest.CaptureFixture[str]) -> None:
    rows = numbers(capsys, "--table6")
    assert len(rows) == 18
    ours, ratio = pytest.approx(4258, abs=0.1), pytest.approx(0.999, abs=5e-4)
    assert rows[5] == {"model": "ViT-H/14", "epochs": 14, "paper": 4262, "ours": ours, "ratio": ratio}
    text = printed(capsys, "--table6")
    assert all(row["model"] in text for row in rows) and "0.969" in text
    bounds = {("ViT-B/32", 7): (2.0, 2.1), ("R50+ViT-L/16", 7): (-3.15, -3.0)}
    for row in rows:
        low, high = bounds.get((row["model"], row["epochs"]), (-1.0, 1.0))
        assert low <= 100 * (row["ratio"] - 1) <= high, row


def test_a_checkpoint_is_costed_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_model(create_model("ViT-32x1x2/8", 5, (32, 16)), tmp_path / "mine")
    [cost] = numbers(capsys, str(tmp_path / "mine"))
    assert cost["image_size"] == [32, 16]
    assert cost["parameters"] == parameters(model_config("ViT-32x1x2/8", 5, (32, 16)))
    [larger] = numbers(capsys, str(tmp_path / "mine"), "--image-size", "64", "--num-classes", "7")
    assert larger["parameters"] == parameters(model_config("ViT-32x1x2/8", 7, 64))
    assert "Next: vitkit card" in printed(capsys, str(tmp_path / "mine"))


def test_a_resnet_needs_less_in_bfloat16(capsys: pytest.CaptureFixture[str]) -> None:
    [cost] = numbers(capsys, "BiT-R50x1", "--batch-size", "32")
    whole, half = (cost["training_memory"][precision] for precision in ("float32", "bfloat16"))
    assert half["activations"] < 0.6 * whole["activations"] and half["peak"] < whole["peak"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ViT-Bx/16", "Did you mean"),
        ("", "Name a model"),
        ("nothere.pth", "No checkpoint at nothere.pth"),
        ("runs/digits", "No checkpoint at runs/digits"),
        ("https://example.org/weights.txt", "expected the address of one file"),
        ("ViT-B/16 --num-heads 3", "--num-heads is for a checkpoint"),
        ("ViT-B/16 --image-size 8", "hold no patch of 16x16"),
        ("ViT-B/16 --epochs 3", "--epochs and --images together"),
        ("ViT-B/16 --epochs 0 --images 5", "above 0"),
        ("ViT-B/16 --batch-size 0", "--batch-size is at least 1"),
        ("ViT-1000000000x1000000000x1/16", "width is from 1 to 1,048,576"),
        ("ViT-8x1000000000x1/16", "depth is from 1 to 1,000"),
        ("BiT-R50x99999999999", "width_factor is at most 1,024"),
        ("ViT-B/16-reg99999999999", "register_tokens is from 0 to"),
        ("ViT-B/16 --utilization 40", "fraction above 0"),
    ],
)
def test_what_cannot_be_costed(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cost", *arguments.split()]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert message in captured.err


def test_models_lists_every_family_in_a_narrow_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert set(list_models()) <= rows.keys()
    assert rows["BiT-R50x1"].split()[1:5] == ["3-4-6-3", "2048", "–", "–"]
    assert rows["R50+ViT-B/16"].split()[1:6] == ["3-4-9", "+", "12", "768", "12"]
    assert rows["ViT-B/16"].split()[1:5] == ["12", "768", "12", "197"]
    assert all(len(rows[name].rstrip()) <= 100 for name in list_models())


def test_models_by_patterns_parts_and_composed_names() -> None:
    assert matching([]) == list_models()
    assert matching(["ViT-b/32"]) == ["ViT-b/32"]  # not ViT-B/32
    assert matching(["bit-r152*"]) == ["BiT-R152x1", "BiT-R152x2", "BiT-R152x4"]
    assert matching(["r152", "BiT-R152x1", "ViT-H/14"])[3:] == ["ViT-H/14"]
    assert matching(["ViT-96x6x3/4-gap"]) == ["ViT-96x6x3/4-gap"]


def test_the_padding_is_what_tells_our_resnets_from_the_papers() -> None:
    config = model_config("BiT-R50x1")
    exa = [training_flops(config, 7 * JFT_IMAGES, padding=padding) / 1e18 for padding in (False, True)]
    assert exa == [pytest.approx(50.2, abs=0.05), pytest.approx(52.0, abs=0.05)]
