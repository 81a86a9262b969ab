"""How a command line becomes the options of a job."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import tyro

from tests.helpers.verbs import COMMANDS
from vitkit.cli.main import run
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.cli.options import CONSTRUCTORS, parse, read_names, spell_out
from vitkit.cli.verb_options import Option, describe
from vitkit.errors import VitkitError
from vitkit.models.config.image_config import Size


@dataclass(frozen=True)
class Options:
    model: str
    images: tuple[str, ...]
    image_size: Size | None = None
    rates: tuple[float, ...] = ()
    seed: int = 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["m", "a.png"], Options("m", ("a.png",))),
        (["m", "--image-size", "32", "a.png"], Options("m", ("a.png",), (32, 32))),
        (["m", "--image-size=32", "a.png"], Options("m", ("a.png",), (32, 32))),
        (["--image-size", "32", "48", "m", "a.png", "b.png"], Options("m", ("a.png", "b.png"), (32, 48))),
        (["m", "a.png", "--image-size", "32"], Options("m", ("a.png",), (32, 32))),
        (["m", "--image-size", "32x48", "9"], Options("m", ("9",), (32, 48))),
        (["m", "--image-size=32,48", "9"], Options("m", ("9",), (32, 48))),
        (["m", "--image-size", "None", "a"], Options("m", ("a",))),
        (["m", "--rates", "1", "2", "a"], Options("m", ("a",), None, (1.0, 2.0))),
    ],
)
def test_an_image_size_is_one_number_or_two_and_takes_no_names(
    arguments: list[str], expected: Options
) -> None:
    assert parse(Options, arguments, "verb") == expected


@pytest.mark.parametrize("sizes", [["x"], ["x", "y"], ["3.5", "3.5"], ["32,48,64"], ["32x"]])
def test_an_image_size_that_is_no_size_is_refused(sizes: list[str]) -> None:
    with pytest.raises(WrongCommandLine, match="--image-size"):
        parse(Options, ["m", "a.png", "--image-size", *sizes], "verb")


def test_numbers_that_follow_one_another_are_one_list() -> None:
    options = describe(Options)

    def spelt(line: str) -> str:
        return " ".join(spell_out(line.split(), lambda: options))

    assert spelt("--image-size 32 48 9") == "--image-size 32,48 9"
    assert spelt("--image_size 32 48 --rates .1 2e-3 x 5") == "--image_size 32,48 --rates .1,2e-3 x 5"
    assert spelt("--image-size 32 a.png") == "--image-size 32 a.png"
    assert spelt("--image-size=32 48 9") == "--image-size=32 48 9"
    assert spelt("--seed 1 2 3") == "--seed 1 2 3"  # a single number, and words that follow it
    assert spelt("--subset 0.1 --subset=[:10%]") == "--splits.subset 0.1 --splits.subset=[:10%]"


def test_options_are_described_only_where_numbers_follow_one_another() -> None:
    def describe_options() -> tuple[Option, ...]:
        raise AssertionError

    assert spell_out(["m", "1", "2", "--image-size", "32", "9.png"], describe_options)[-1] == "9.png"


def required(options: Sequence[Option]) -> list[str]:
    """Write words for the positional options."""
    return [option.choices[0] if option.choices else "word" for option in options if option.is_required]


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_list_takes_commas_and_every_list_of_numbers_spaces(verb: str) -> None:
    """The options are found by their types. What a dataclass refuses of the values is its own affair."""
    command, page = COMMANDS[verb]
    options = describe(command)
    for option in options:
        if not option.is_list:
            continue
        values = [str(choice) for choice in option.choices[:2]] or ["0.25", "0.5", "0.75"][: option.most]
        values = ["32", "48", "64"][: option.most] if option.number is int else values
        forms = [[",".join(values)], *([values] if option.number else [])]
        read = []
        for form in forms:
            # After the words, and before another option: nothing is taken that does not belong to it.
            line = [*required(options), option.name, *form]
            spelt = spell_out(line, lambda: options)
            assert spelt[-1] == ",".join(values), option.name
            try:
                read.append(parse(command, line, verb, page))
            except WrongCommandLine as error:
                pytest.fail(f"{option.name}: {error}")
            except VitkitError:
                read.append(None)
        assert all(command_line == read[0] for command_line in read)


@pytest.mark.parametrize("verb", COMMANDS)
def test_what_is_described_is_what_the_parser_takes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _ = COMMANDS[verb]
    with pytest.raises(SystemExit):
        tyro.cli(
            command,
            args=["--help"],
            prog="x",
            registry=CONSTRUCTORS,
            config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
        )
    # Names begin at the left edge of a box, and texts further to the right.
    heads = re.findall(r"^[│| ] (-.*)$", capsys.readouterr().out, re.MULTILINE)
    taken = {name for head in heads for name in re.findall(r"--[a-z][a-z0-9.-]*", head.split("  ")[0])}
    described = {name for option in describe(command) if not option.is_positional for name in option.names}
    assert described == taken - {"--help"}


@pytest.mark.parametrize(
    ("verb", "hint"), [("evaluate", '--split "test[:10%]"'), ("fewshot", "Leave it out"), ("embed", "Leave")]
)
def test_a_subset_is_refused_where_there_are_no_splits(
    verb: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([verb, "model", "--subset=0.1"]) == 1
    said = capsys.readouterr().err
    assert f"vitkit {verb} trains none" in said and hint in said and "--splits" not in said


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict", "inspect", "card", "cost", "convert"])
def test_every_verb_takes_one_number_for_a_square(verb: str) -> None:
    command, page = COMMANDS[verb]
    read: Any = parse(command, [*required(describe(command)), "--image-size", "32"], verb, page)
    assert (read.run.preprocessing if verb == "train" else read).image_size == (32, 32)


def test_names_on_standard_input_stand_in_place_of_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", iter([" b.png\n", "\n", "c d.png\n"]))
    assert read_names(["a.png", "-", "e.png"]) == ("a.png", "b.png", "c d.png", "e.png")
    monkeypatch.setattr("sys.stdin", iter(["\n"]))
    with pytest.raises(VitkitError, match="list of images on standard input is empty"):
        read_names(["-"])
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(VitkitError, match="Standard input is closed"):
        read_names(["-"])
