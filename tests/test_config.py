"""Configurations to JSON and back."""

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitkit.config import difference, from_json, to_json
from vitkit.errors import VitkitError


@dataclass(frozen=True)
class Inner:
    size: tuple[int, int] = (1, 2)
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    rate: float
    inner: Inner = Inner()
    area: tuple[float, float] | None = None
    names: tuple[str, ...] = ()
    steps: int | None = None
    flag: bool = False


@given(
    st.builds(
        Outer,
        rate=st.floats(allow_nan=False),
        inner=st.builds(
            Inner, size=st.tuples(st.integers(), st.integers()), kind=st.sampled_from(["a", "b"])
        ),
        area=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
        names=st.lists(st.text()).map(tuple),
        steps=st.none() | st.integers(),
        flag=st.booleans(),
    )
)
def test_there_and_back(config: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(config))), "x") == config


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"rat": 1.0}, "x: unknown key 'rat'. Did you mean 'rate'"),
        ({}, "'rate' of Outer is missing"),
        ({"rate": "fast"}, "x: rate: expected float, found 'fast'"),
        ({"rate": 1, "steps": True}, "steps: expected int"),
        ({"rate": 1, "flag": 1}, "flag: expected bool"),
        ({"rate": 1, "area": [1.0]}, "area: expected"),
        ({"rate": 1, "inner": {"kind": "c"}}, "x: inner: kind: expected one of 'a', 'b', found 'c'"),
        ({"rate": 1, "inner": {"sizes": [1, 2]}}, "unknown key 'sizes'. Did you mean 'size'"),
        ({"rate": 1, "inner": 3}, "expected an object"),
    ],
)
def test_errors_name_place_and_remedy(data: dict[str, Any], words: str) -> None:
    with pytest.raises(VitkitError) as caught:
        from_json(Outer, data, "x")
    assert words in str(caught.value)


def test_differences_are_named_by_their_path() -> None:
    one = {"a": 1, "b": {"c": 2, "d": 3}}
    assert difference(one, one) == []
    assert difference(one, {"a": 1, "b": {"c": 9, "d": 3}, "e": 0}) == ["b.c: 2 -> 9", "e: nothing -> 0"]
