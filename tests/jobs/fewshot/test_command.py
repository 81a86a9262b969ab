"""Few-shot evaluation at the command line."""

import json
from pathlib import Path

import pytest

import vitkit
from tests.helpers.fewshot import save_start
from vitkit.cli.main import run

HOSTILE = "cat\x1b[2J"


def test_one_checkpoint_at_the_command_line(
    data: str, start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(data) / "dark").rename(Path(data) / HOSTILE)
    (Path(data) / "light").rename(Path(data) / "<i>light")
    assert run(["fewshot", start, "--data", data, "--shots", "1,4", "--out", "out"]) == 0
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out
    for phrase in (
        "ridge",
        "knn",
        "logistic",
        "95 % over draws",
        "a class drawn at random is right for 33.3%",
        "Hardest",
        "Next: ",
    ):
        assert phrase in shown.out
    files = ["images.html", "images.json", "images.png", "images.svg"]
    assert sorted(path.name for path in Path("out").iterdir()) == files
    numbers = json.loads(Path("out/images.json").read_text())
    assert Path(start).is_absolute() and Path(data).is_absolute()
    assert (numbers["models"][0]["start"], numbers["data"]) == (Path(start).name, Path(data).name)
    assert [(s["method"], s["shots"]) for s in numbers["models"][0]["scores"]][:2] == [
        ("ridge", 1),
        ("ridge", 4),
    ]
    svg = Path("out/images.svg").read_text()
    assert "guessing" in svg
    assert "nearest neighbours" in svg
    page = Path("out/images.html").read_text()
    best = max(numbers["models"][0]["scores"], key=lambda score: (score["shots"], score["mean"]))
    assert f"is right on {best['mean']:.1%} of" in page
    assert "<svg" in page and "Class by class" in page and str(Path(data).parent) not in page
    for score in numbers["models"][0]["scores"]:
        assert f"{score['mean']:.2%}" in page and f"{score['mean']:.2%}" in shown.out
    assert "<i>light" not in page
    assert "&lt;i&gt;light" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http-equiv", "")  # needs no network


def test_several_checkpoints_in_one_table_and_one_picture(
    data: str, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = save_start(tmp_path / "other-start", seed=1)
    command = ["fewshot", start, other, "--data", data, "--shots", "1,2", "--methods", "ridge,knn"]
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert "other-start" in shown
    svg = Path("fewshot/images.svg").read_text()
    assert "other-start" in svg
    assert svg.count("nearest neighbours") == 1  # the title of its picture
    page = Path("fewshot/images.html").read_text()
    assert "The best of the checkpoints is" in page
    assert page.count("<td>other-start</td>") == 4  # a row for each method and number of shots
    assert run([*command, "--json"]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert [model["name"] for model in numbers["models"]] == ["start", "other-start"]
    assert numbers == json.loads(
        json.dumps(vitkit.fewshot([start, other], data, shots=(1, 2), methods=("ridge", "knn")).to_json())
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "No data at 'nowhere'"),
        (
            ["--data", "digits", "--shots", "0,5"],
            "shots of a few-shot evaluation are 1 or more, found 0, 5",
        ),
        (["--data", "digits", "--seeds", "0"], "--seeds is at least 1"),
        (["--data", "digits", "--l2", "0"], "l2 is a number above 0"),
        (["--data", "digits", "--l2", "nan"], "l2: expected a finite number"),
        (["--data", "digits", "--neighbours", "0"], "neighbours is at least 1"),
        (["--data", "digits", "--workers", "-1"], "workers is at least 0"),
        (["--data", "digits", "--device", "abacus"], "cannot be used"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(
    start: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fewshot", start, *options]) == 1
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("wrong", [["--shots", "1,x"], ["--methods", "ridge,nearest"], ["--shots"]])
def test_words_that_are_no_numbers_or_methods_are_refused(
    start: str, wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fewshot", start, "--data", "digits", *wrong]) == 2
    assert "Traceback" not in "".join(capsys.readouterr())


def test_without_a_model_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fewshot", "--data", "digits"]) == 1
    assert "Which model?" in capsys.readouterr().err
