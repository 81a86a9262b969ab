"""An engine that computes something else than the model is refused, and so is what no engine can compute."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.engines.models import FakeRunner, Logits, small
from vitkit.engines.folder import Agreement
from vitkit.engines.graph import compare, example_images, make_runner, refuse_model, refuse_other_logits
from vitkit.errors import VitkitError


def checked(change: Any, numbers: Any = "float32") -> Agreement:
    model = small()
    images = example_images(model, 16).numpy()
    agreement = compare(model, FakeRunner(model, change), images, "pictures")
    refuse_other_logits(agreement, "openvino", numbers)
    return agreement


def test_what_was_compared_is_said() -> None:
    model = small()
    runner = FakeRunner(model)
    images = example_images(model, 16).numpy()
    agreement = compare(model, runner, images, "pictures")
    assert runner.batches == [1, 3, 12] == list(agreement.batches)
    assert agreement.difference < 1e-5 * agreement.spread
    assert "standard deviation from PyTorch's, on 16 pictures in batches of 1, 3 and 12" in str(agreement)


def test_float32_keeps_to_a_share_of_the_deviation_and_bfloat16_of_the_largest_logit() -> None:
    """In float32 of one logit alone: the mean over all of them would not notice it."""
    spread = checked(np.asarray).spread

    def one_moved(share: float) -> Callable[[Logits], Logits]:
        def moved(logits: Logits) -> Logits:
            logits[-1, 0] += share * spread
            return logits

        return moved

    def all_moved(share: float) -> Callable[[Logits], Logits]:
        return lambda logits: logits + np.float32(share * np.abs(logits).max())

    assert checked(one_moved(5e-5)).difference == pytest.approx(5e-5 * spread, rel=0.1)
    with pytest.raises(VitkitError, match=r"computes other logits .* 3\.\de-04 of their standard deviation"):
        checked(one_moved(3e-4))
    assert checked(all_moved(0.05), "bfloat16").difference > 0
    with pytest.raises(VitkitError, match="computes other logits"):
        checked(all_moved(0.2), "bfloat16")


@pytest.mark.parametrize("change", [lambda logits: logits * np.float32(np.nan), lambda logits: logits[:, :4]])
def test_no_number_and_no_logit_do_not_pass(change: Any) -> None:
    with pytest.raises(VitkitError, match="computes other logits"):
        checked(change)


def test_relative_positions_are_refused_in_words_before_any_work() -> None:
    with pytest.raises(VitkitError, match=r"no operation for the relative positions .* engine openvino"):
        refuse_model("onnxruntime", small("ViT-32x2x4/8-relative").config)
    refuse_model("openvino", small("ViT-32x2x4/8-relative").config)
    refuse_model("onnxruntime", small().config)


def test_colours_of_a_terminal_do_not_stand_in_what_an_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*arguments: object) -> None:
        raise RuntimeError("\x1b[96mFailed\x1b[0m to\ndecompose \x1b]0;title\x07")

    monkeypatch.setattr("vitkit.engines.graph.convert", convert)
    with pytest.raises(VitkitError) as refusal:
        make_runner(small(), "openvino", "float32", 1, None)
    assert "(RuntimeError: Failed to decompose " in str(refusal.value)
    assert "\x1b" not in str(refusal.value) and "\x07" not in str(refusal.value)
