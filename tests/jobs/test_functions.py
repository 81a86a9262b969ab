"""A dataclass of options makes a function: its parameters, its Args, and what it takes."""

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.jobs.recorder import Recorder
from vitkit.errors import VitkitError
from vitkit.jobs.functions import (
    from_options,
    read_argument_texts,
    read_field_texts,
    read_signature,
    summary_of,
)
from vitkit.jobs.options import JobOptions, SizeOptions, as_arguments, as_names, require_at_least


@dataclass(frozen=True)
class Painting(SizeOptions, JobOptions):
    """The options of a picture."""

    colour: str
    """the colour of it,
    in words."""
    thickness: float = 1.5
    """of a line."""


def run_paint(options: Painting) -> tuple[str, float]:
    """Paint a picture.

    Returns:
        Colour and thickness of the picture.
    """
    options.listener.note(f"painting in {options.colour}")
    return options.colour, options.thickness


paint = from_options(Painting)(run_paint)


def test_a_job_becomes_a_function_of_the_fields_of_its_options() -> None:
    heard = Recorder()
    assert paint("red", listener=heard) == paint(colour="red", thickness=1.5, image_size=3) == ("red", 1.5)
    parameters = ["colour", "thickness", "image_size", "quiet", "listener"]
    assert list(inspect.signature(paint).parameters) == parameters
    assert inspect.signature(paint).return_annotation == tuple[str, float]
    assert paint.__name__ == "paint" and paint.__module__ == __name__
    with pytest.raises(TypeError, match="color"):
        paint("red", color="blue")  # type: ignore[call-arg]


def test_the_texts_of_the_fields_are_the_args_before_what_is_returned() -> None:
    text = paint.__doc__ or ""
    assert (
        "Paint a picture.\n\nArgs:\n    colour: the colour of it, in words.\n    thickness: of a line.\n"
        in text
    )
    assert text.endswith("Returns:\n    Colour and thickness of the picture.\n") and text.count("Args:") == 1


def test_without_its_source_a_function_works_and_has_no_args(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: object) -> str:
        raise OSError

    monkeypatch.setattr("vitkit.jobs.functions.inspect.getsource", nowhere)
    assert read_field_texts(Painting) == {}
    assert from_options(Painting)(run_paint)("red") == ("red", 1.5)


def test_options_of_more_fields_stand_for_those_of_fewer() -> None:
    assert as_arguments(SizeOptions, Painting("red", image_size=(2, 3))) == {"image_size": (2, 3)}


@pytest.mark.parametrize("paths", ["a", Path("a"), ["a"], (Path("a"),)])
def test_one_path_or_several_are_names(paths: str | Path | Sequence[str | Path]) -> None:
    assert as_names(paths) == ("a",)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("card", "read_card"),
        ("cost", "count_costs"),
        ("data_check", "check"),
        ("list_runs", "list_runs"),
        ("models", "measure_models"),
        ("predict", "predict_images"),
    ],
)
def test_a_signature_that_is_read_from_the_source_is_that_of_the_function(module: str, name: str) -> None:
    function = getattr(importlib.import_module(f"vitkit.jobs.{module}"), name)
    made = read_signature(f"vitkit.jobs.{module}", name)
    assert inspect.signature(made).parameters == inspect.signature(function).parameters
    assert made.__doc__ == function.__doc__
    texts, parameters = read_argument_texts(function), inspect.signature(function).parameters
    assert list(texts)[: len(parameters)] == list(parameters) and all(texts.values())
    assert "Args" not in summary_of(function) and summary_of(function)


def test_a_number_below_its_bound_is_refused_by_its_name() -> None:
    require_at_least(1, batch_size=1, neighbours=None)
    with pytest.raises(VitkitError, match=r"^neighbours is at least 1, found 0\.$"):
        require_at_least(1, batch_size=1, neighbours=0)
