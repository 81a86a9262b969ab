"""What is read of the functions of jobs: their signatures and the texts of their parameters."""

import importlib
import inspect
from collections.abc import Sequence
from pathlib import Path

import pytest

from vitkit.cli.verb_options import (
    read_argument_texts,
    read_field_texts,
    read_signature,
    summary_of,
)
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_names, require_at_least
from vitkit.runs.run_options import SeriesOptions


def test_without_its_source_a_dataclass_has_no_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(_: object) -> str:
        raise OSError

    assert read_field_texts(SeriesOptions)
    monkeypatch.setattr("vitkit.cli.verb_options.inspect.getsource", nowhere)
    assert read_field_texts(SeriesOptions) == {}


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
