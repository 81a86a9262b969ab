"""How a command line becomes the options of a job."""

from functools import partial
from typing import Any

import pytest

from tests.helpers.refusals import refused
from tests.helpers.verbs import COMMANDS, options_of
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import Verb, call, parse_given, read_names
from vitkit.cli.verb_options import describe, read
from vitkit.data.config import Splits
from vitkit.errors import VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.models.config import Size
from vitkit.other_names import MEANT, OTHER_NAMES


def sizes(
    model: str, *, image_size: Size | None = None, rates: tuple[float, ...] = (), seed: int = 0
) -> tuple[object, ...]:
    return model, image_size, rates, seed


def parse(job: Any, line: str) -> Any:
    """Call a function as a verb does."""
    options = describe(job)
    return call(job, parse_given(job, options, line.split(), "verb"), options)


def test_an_image_size_is_one_number_or_two_and_takes_no_names() -> None:
    for line, size in (
        ("9", None),
        ("--image-size 32 48 9", (32, 48)),
        ("9 --image-size=32", (32, 32)),
        ("--image-size 32x48 9", (32, 48)),
        ("--image-size=32,48 9", (32, 48)),
        ("--image-size None 9", None),
    ):
        assert parse(sizes, line) == sizes("9", image_size=size)


def test_numbers_that_follow_one_another_are_one_list() -> None:
    for line, given, rest in (
        ("--image_size 32 48 --rates .1 2e-3 x 5", {"image_size": (32, 48), "rates": (0.1, 0.002)}, "x 5"),
        ("--image-size=32 48 9", {"image_size": (32, 32)}, "48 9"),
        ("--seed 1 2 3", {"seed": 1}, "2 3"),  # a single number, and words that follow it
        ("--other --seed -1 -- --seed 3", {"seed": -1}, "--other -- --seed 3"),
    ):
        result = read(line.split(), describe(sizes))
        assert not result.wrong and (result.given, result.rest) == (given, rest.split())


def test_words_go_to_their_places_wherever_options_stand() -> None:
    def job(first: str, several: tuple[str, ...], data: str, last: str = "unset") -> tuple[object, ...]:
        return first, several, data, last

    places = partial(parse, job)
    assert places("a b c d") == ("a", ("b", "c"), "d", "unset")
    assert places("--data d a b c") == places("a --data d b c") == ("a", ("b", "c"), "d", "unset")
    assert places("a b --data=d --last l c") == ("a", ("b", "c"), "d", "l")
    assert places("-- -a - -c") == ("-a", ("-",), "-c", "unset")
    refused("DATA is missing", places, "a b")
    refused("FIRST is missing", places, "--data d")


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_list_takes_commas_and_every_list_of_numbers_spaces(verb: str) -> None:
    """The options are found by their types. What a dataclass refuses of the values is its own affair."""
    options = options_of(verb)
    required = [(*option.choices, "word")[0] for option in options if option.is_required]
    for option in [option for option in options if option.is_list]:
        values = [str(choice) for choice in option.choices[:2]] or ["0.25", "0.5", "0.75"][: option.most]
        values = ["32", "48", "64"][: option.most] if option.number is int else values
        forms = [[",".join(values)], *([values] if option.number else [])]
        readings = [read([*required, option.name, *form], options) for form in forms]
        # After the words: nothing is taken that does not belong to it.
        assert all(not reading.wrong and reading.rest == required for reading in readings), option.name
        assert all(reading.given == readings[0].given for reading in readings)


def test_names_on_standard_input_stand_in_place_of_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", iter([" b.png\n", "\n", "c d.png\n"]))
    assert read_names(["a.png", "-", "e.png"]) == ("a.png", "b.png", "c d.png", "e.png")
    monkeypatch.setattr("sys.stdin", iter(["\n"]))
    refused("list of images on standard input is empty", read_names, ["-"])
    monkeypatch.setattr("sys.stdin", None)
    refused("Standard input is closed", read_names, ["-"])


def test_a_function_is_called_with_what_is_given_and_its_errors_name_options() -> None:
    def job(
        data: str, *, batch_size: int = 1, splits: Splits | None = None, listener: Listener = SILENT
    ) -> tuple[object, ...]:
        """Do a job.

        Args:
            data: images.
            batch_size: images at a time: one, or
                more.
            splits: how it is cut.
            listener: hears it.
        """
        if batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {batch_size}.")
        return data, batch_size, splits, isinstance(listener, TerminalListener)

    options = describe(job)
    assert [option.name for option in options[:3]] == ["DATA", "--data", "--batch-size"]
    assert options[2].text == "images at a time: one, or more." and options[-1].group == "how it is cut."

    assert parse(job, "x --splits.seed 3") == ("x", 1, Splits(seed=3), True)
    assert parse(job, "--batch-size 2 --data x") == ("x", 2, None, True)
    refused(r"^batch_size is at least 1, found 0\.$", parse, job, "x --batch-size 0")


def test_a_verb_knows_which_of_its_options_name_weights_and_images() -> None:
    verb = Verb("fewshot", "jobs.fewshot:fewshot")
    assert {option.path for option in verb.options if option.names_weights} == {"starts"}
    assert {option.path for option in verb.options if option.names_images} == {"data"}
    refused("nowhere", verb.parse, ["nowhere", "digits"])
    refused("No data at 'nothing'", verb.parse, ["hf:google/vit", "nothing"])  # the address is fetched later
    assert verb.parse(["hf:google/vit", "digits"]) == {"starts": ("hf:google/vit",), "data": "digits"}
    names = Verb("cost", "jobs.cost:count_costs")
    assert names.parse(["ViT-B/16"]) == {"models": ("ViT-B/16",)}  # a name of a model is no path


def test_a_verb_fetches_weights_before_it_calls_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    monkeypatch.setattr("vitkit.cli.options.download", lambda *weights: order.append(weights))

    def read_card(source: str, *, num_heads: int | None = None) -> None:
        order.append((source, num_heads))

    monkeypatch.setattr("vitkit.jobs.convert.read_card", read_card)
    Verb("card", "jobs.convert:read_card").call({"source": "hf:google/vit", "num_heads": 3})
    assert order == [("hf:google/vit",), ("hf:google/vit", 3)]


def test_the_words_of_others_lead_to_options_that_are_there() -> None:
    there = {name for verb in COMMANDS for option in options_of(verb) for name in option.names}
    assert set(OTHER_NAMES) <= there
    others = [name for names in OTHER_NAMES.values() for name in names]
    assert sorted(others) == sorted(set(others))
    # An option of ours by that name goes first, where the verb has it.
    assert not {f"--{name}" for name in MEANT} & {"--data", "--start", "--model"}
