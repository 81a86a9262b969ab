"""How a command line becomes the options of a job."""

from dataclasses import dataclass
from typing import Any

import pytest
import tyro

from vitkit.cli.main import run
from vitkit.cli.options import parse, read_names, spell_out
from vitkit.errors import VitkitError
from vitkit.models.config.image_config import Size


@dataclass(frozen=True)
class Options:
    model: str
    images: tuple[str, ...]
    image_size: Size | None = None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m", "a.png"], Options("m", ("a.png",))),
        (["m", "--image-size", "32", "a.png"], Options("m", ("a.png",), (32, 32))),
        (["m", "--image-size=32", "a.png"], Options("m", ("a.png",), (32, 32))),
        (["--image-size", "32", "48", "m", "a.png", "b.png"], Options("m", ("a.png", "b.png"), (32, 48))),
        (["m", "a.png", "--image-size", "32"], Options("m", ("a.png",), (32, 32))),
    ],
)
def test_an_image_size_is_one_number_or_two_and_takes_no_names(
    arguments: list[str], expected: Options
) -> None:
    assert parse(Options, arguments, "verb") == expected


@pytest.mark.parametrize("words", [["x"], ["x", "y"], ["3.5", "3.5"]])
def test_an_image_size_that_is_no_number_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(Options, ["m", "a.png", "--image-size", *words], "verb")
    assert "--image-size" in capsys.readouterr().err


def test_one_number_is_a_square() -> None:
    assert spell_out(["a", "--image-size", "32", "--x"]) == ["a", "--image-size", "32", "32", "--x"]
    assert spell_out(["--image-size", "32", "48"]) == ["--image-size", "32", "48"]
    assert spell_out(["--image-size", "32x48", "9.png"]) == ["--image-size", "32", "48", "9.png"]
    assert spell_out(["--image-size=32x48", "9"]) == ["--image-size", "32", "48", "9"]
    assert spell_out(["--image-size", "32xa"]) == ["--image-size", "32xa"]
    assert spell_out(["--image-size", "32", "x.png"]) == ["--image-size", "32", "32", "x.png"]
    assert spell_out(["--image-size=32", "--x"]) == ["--image-size", "32", "32", "--x"]
    assert spell_out(["--image-size", "32"]) == ["--image-size", "32", "32"]


def test_a_subset_is_an_option_of_the_splits() -> None:
    expected = ["--splits.subset", "0.1", "--splits.subset=[:10%]"]
    assert spell_out(["--subset", "0.1", "--subset=[:10%]"]) == expected
    assert spell_out(["--splits.subset", "0.1"]) == ["--splits.subset", "0.1"]


@pytest.mark.parametrize(
    ("verb", "words"), [("evaluate", '--split "test[:10%]"'), ("fewshot", "Leave it out"), ("embed", "Leave")]
)
def test_a_subset_is_refused_where_there_are_no_splits(
    verb: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "model", "--subset=0.1"]) == 1
    said = capsys.readouterr().err
    assert f"vitkit {verb} trains none" in said and words in said and "--splits" not in said


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict", "inspect", "card", "cost", "convert"])
def test_every_verb_takes_one_number_for_a_square(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def parser(*arguments: Any, args: list[str], **options: Any) -> None:
        given.extend(args)
        raise SystemExit(0)  # as after --help: what a verb does with its options is not tested here

    monkeypatch.setattr(tyro, "cli", parser)
    assert run([verb, "--image-size", "32"]) == 0
    assert given == ["--image-size", "32", "32"]


def test_names_on_standard_input_stand_in_place_of_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", iter([" b.png\n", "\n", "c d.png\n"]))
    assert read_names(["a.png", "-", "e.png"]) == ("a.png", "b.png", "c d.png", "e.png")
    monkeypatch.setattr("sys.stdin", iter(["\n"]))
    with pytest.raises(VitkitError, match="list of images on standard input is empty"):
        read_names(["-"])
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(VitkitError, match="Standard input is closed"):
        read_names(["-"])
