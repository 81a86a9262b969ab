"""Configurations to JSON and back."""

import dataclasses
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.refusals import refused
from vitkit.config import Fraction, difference, from_json, require_valid, to_json
from vitkit.data.config import Augmentation, Loading, Preprocessing, Splits
from vitkit.models.config import BackboneConfig, ResNetConfig, ViTConfig
from vitkit.runs.config import Architecture
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig


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


WHOLE = st.integers(-(2**63) + 1, 2**63 - 1)


@given(
    st.builds(
        Outer,
        rate=st.floats(allow_nan=False),
        inner=st.builds(Inner, size=st.tuples(WHOLE, WHOLE), kind=st.sampled_from(["a", "b"])),
        area=st.none() | st.tuples(st.floats(0, 1), st.floats(0, 1)),
        names=st.lists(st.text()).map(tuple),
        steps=st.none() | WHOLE,
        flag=st.booleans(),
    )
)
def test_there_and_back(config: Outer) -> None:
    assert from_json(Outer, json.loads(json.dumps(to_json(config))), "x") == config


def test_differences_are_named_by_their_path() -> None:
    config = {"a": 1, "b": {"c": 2, "d": 3}}
    assert difference(config, config) == []
    assert difference(config, {"a": 1, "b": {"c": 9, "d": 3}, "e": 0}) == ["b.c: 2 -> 9", "e: nothing -> 0"]


@dataclass(frozen=True)
class Finite:
    rate: float = 0.0
    area: tuple[float, float] = (0.0, 1.0)
    sums: Mapping[str, float] = field(default_factory=dict)
    count: int = 0
    share: Fraction = 0.0

    def __post_init__(self) -> None:
        require_valid(self)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1e39, -1e308])
def test_numbers_that_are_none_in_float32_are_refused_by_name(number: float) -> None:
    refused("rate: expected a finite number", Finite, rate=number)
    refused("area: expected a finite number", from_json, Finite, {"area": [0.5, number]}, "x")


def test_numbers_of_numpy_become_those_of_python() -> None:
    given: list[Any] = [np.int64(3), np.float32(2.5), np.uint64(2**63), np.float32("inf"), 224]
    config = TrainingConfig(seed=given[0], epochs=given[1])
    assert (type(config.seed), config.seed, type(config.epochs), config.epochs) == (int, 3, float, 2.5)
    assert json.dumps(to_json(config))
    refused("seed", TrainingConfig, seed=given[2])
    refused("weight_decay: expected a finite number", OptimizerConfig, weight_decay=given[3])
    refused(r"image_size is tuple\[int, int\], found 224", Preprocessing, image_size=given[4])


VIT = {"width": 8, "depth": 1, "num_heads": 1, "mlp_dim": 8}
CONFIGURATIONS: list[tuple[Any, dict[str, Any]]] = [
    (OptimizerConfig, {}),
    (TrainingConfig, {}),
    (ClassificationConfig, {}),
    (Augmentation, {}),
    (Preprocessing, {"image_size": (8, 8)}),
    (Splits, {}),
    (Loading, {}),
    (Architecture, {}),
    (BackboneConfig, {}),
    (ResNetConfig, {"image_size": (32, 32), "layers": (1,), "num_classes": 2}),
    (ViTConfig, {"image_size": (8, 8), "patch_size": (4, 4), "num_classes": 2, **VIT}),
]


@pytest.mark.parametrize(("kind", "given"), CONFIGURATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_number_of_every_configuration_must_be_finite(kind: Any, given: dict[str, Any]) -> None:
    config = kind(**given)
    hints = typing.get_type_hints(kind)
    names = [name for name, hint in hints.items() if "float" in str(hint)]
    assert names
    for name in names:
        value = getattr(config, name)
        wrong = (float("nan"),) * len(value) if isinstance(value, tuple) else float("nan")
        refused(f"{name}: expected a finite number", dataclasses.replace, config, **{name: wrong})


@dataclass(frozen=True)
class Holder:
    training: OptimizerConfig


ERRORS = [
    (Outer, {"rat": 1.0}, "x: unknown key 'rat'. Did you mean 'rate'"),
    (Outer, {}, "'rate' of Outer is missing"),
    (Outer, {"rate": 1, "steps": True}, "steps: expected int"),
    (Outer, {"rate": 1, "flag": 1}, "flag: expected bool"),
    (Outer, {"rate": 1, "area": [1.0]}, "area: expected"),
    (Outer, {"rate": 1, "inner": {"kind": "c"}}, "x: inner: kind: expected one of 'a', 'b', found 'c'"),
    (Outer, {"rate": 1, "inner": 3}, "expected an object"),
    (Finite, {"sums": 3}, "x: sums: expected an object, found 3"),
    (Finite, {"sums": {"loss": "low"}}, "x: sums: 'loss': expected float, found 'low'"),
    (Finite, {"rate": 10**400}, "x: rate: the number .* is too large"),
    (Finite, {"count": 2**63}, "x: count: the number 9223372036854775808 is too large"),
    (Finite, {"share": 1.5}, r"x: share: expected a fraction from 0 to 1, found 1\.5"),
    (Finite, {"rate": "y" * 1000}, "x: rate: expected float, found '.{,90}$"),
    (Finite, [[[[[[[[[[[]]]]]]]]]]], "expected an object"),
    (Holder, {"training": {"learning_rate": 1e39}}, "x: training: learning_rate: expected a finite"),
]


@pytest.mark.parametrize(("kind", "data", "message"), ERRORS)
def test_errors_name_place_and_remedy_in_a_line(kind: type, data: Any, message: str) -> None:
    refused(message, from_json, kind, data, "x")
