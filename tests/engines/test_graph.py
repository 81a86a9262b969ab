"""The graph that engines are handed gives the model's logits, whatever the model is."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.engines.models import NAMES, FakeRunner, Logits, small
from tests.helpers.refusals import refused
from vitkit.engines.folder import Agreement, EngineModel
from vitkit.engines.graph import (
    compare,
    example_images,
    graph_of,
    make_runner,
    refuse_model,
    refuse_other_logits,
)
from vitkit.errors import VitkitError
from vitkit.models.config import Card, Compute, Task
from vitkit.models.fast import compute_as
from vitkit.models.parts import MLP, Attention
from vitkit.tasks import answering_of


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace:FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize(
    "name",
    [
        *("", "-gap", "-map", "-max", "-reg4", "-relative", "-qknorm-rms"),
        *("-sincos2d", "-sincos2dmae", "-everylayer", "-conv", "-rms", "-qknorm"),
    ],
)
def test_the_graph_gives_the_logits_of_the_model_for_any_number_of_images(name: str) -> None:
    """An engine is handed batches of any size, though the graph is made of two images."""
    model = small(f"ViT-32x2x4/8{name}")
    images = example_images(model, 5)
    with torch.inference_mode():
        graph = torch.jit.trace(graph_of(model), example_images(model))  # type: ignore[no-untyped-call]
        for batch in (images, images[:1]):
            expected = model(batch)
            # Rounding of float32: sums of 192 products in another order.
            assert (graph(batch) - expected).abs().max() < 2e-5 * expected.abs().max()


def test_a_line_of_attention_that_the_graph_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No list of contents sees it; the comparison with the plain model does."""

    def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, bias: None, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(4 * q, k, v)

    monkeypatch.setattr(Attention, "attend", attend)
    model = small()
    graph, images = graph_of(model), example_images(model, 8).numpy()
    # The class token's block has the old line too: it must not be what the graph is compared with.
    compute_as(model, Compute(last_block="class_token"))
    with pytest.raises(VitkitError, match="computes other logits of this model than PyTorch does"):
        compared = compare(model, lambda pixels: graph(torch.from_numpy(pixels)).detach().numpy(), images, "")
        refuse_other_logits(compared, "openvino", "float32")


@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_are_folded_too(channels: int) -> None:
    model = small(channels=channels)
    images = example_images(model, 3)
    graph = graph_of(model)
    with torch.inference_mode():
        assert torch.allclose(graph(images), model(images), rtol=1e-4, atol=1e-4)
        centred = graph.normalize(images)
    assert centred.min() >= -128 and centred.max() <= 127
    assert torch.equal(centred, centred.round())


def test_the_model_stays_as_it_is_and_shares_its_weights() -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    graph = graph_of(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.chosen.last_block == "every_token" and graph.chosen.last_block == "class_token"
    ours, theirs = dict(graph.named_parameters()), dict(model.named_parameters())
    folded = {name for name in theirs if name not in ours or ours[name] is not theirs[name]}
    assert folded == {"stem.weight", "stem.bias"}
    memory = {value.data_ptr() for value in theirs.values()}
    assert ours["blocks.0.attention.projections.0.weight"].data_ptr() in memory


def test_an_engine_s_model_gives_logits_alone() -> None:
    model = small()
    served = EngineModel(
        model.config, Card(class_names=NAMES), lambda images: model(torch.from_numpy(images)).numpy()
    )
    images = example_images(model)
    pixels = images.numpy()
    with torch.inference_mode():
        assert np.array_equal(served(pixels), model(images))
        assert np.array_equal(served(pixels[..., ::-1]), model(images.flip(3)))  # not contiguous
    wrong: Any
    for wrong in (pixels[:, :, :8], pixels[0], pixels.astype(np.float32)):
        refused(r"takes uint8 images \(B, 3, 16, 24\), found", served, wrong)


@pytest.mark.parametrize("numbers", ["bfloat16", "int8"])
def test_gelu_takes_its_faster_form_where_numbers_are_short(numbers: Any) -> None:
    model = small()
    graph = graph_of(model, numbers)
    assert {module.gelu for module in graph.modules() if isinstance(module, MLP)} == {"erf"}
    assert {module.gelu for module in model.modules() if isinstance(module, MLP)} == {"tanh"}
    images = example_images(model, 3)
    with torch.inference_mode():
        difference = (graph(images) - model(images)).abs().max()
    assert difference < 2e-3 * model(images).std()


# An engine that computes something else is refused, and so is what none can compute


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
    refused(r"other logits .* 3\.\de-04 of their standard deviation", checked, one_moved(3e-4))
    assert checked(all_moved(0.05), "bfloat16").difference > 0
    refused("computes other logits", checked, all_moved(0.2), "bfloat16")


@pytest.mark.parametrize("change", [lambda logits: logits * np.float32(np.nan), lambda logits: logits[:, :4]])
def test_no_number_and_no_logit_do_not_pass(change: Any) -> None:
    refused("computes other logits", checked, change)


def test_relative_positions_are_refused_in_words_before_any_work() -> None:
    relative = small("ViT-32x2x4/8-relative").config
    refused(
        "no operation for the relative positions .* engine openvino", refuse_model, "onnxruntime", relative
    )
    refuse_model("openvino", relative)
    refuse_model("onnxruntime", small().config)


def test_colours_of_a_terminal_do_not_stand_in_what_an_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(*arguments: object) -> None:
        raise RuntimeError("\x1b[96mFailed\x1b[0m to\ndecompose \x1b]0;title\x07")

    monkeypatch.setattr("vitkit.engines.graph.convert", convert)
    given = small(), "openvino", "float32", 1, None
    said = refused(r"\(RuntimeError: Failed to decompose ", make_runner, *given)
    assert "\x1b" not in said and "\x07" not in said


# Two models agree where their answers do, whatever the task


def test_agreement_counts_answers_and_measures_logits() -> None:
    model = small()
    pixels = example_images(model, 3).numpy()
    with torch.inference_mode():
        expected = model(torch.from_numpy(pixels)).numpy()
    change = np.zeros_like(expected)
    change[2, expected[2].argmin()] = 2 * np.ptp(expected[2])  # the last image is answered otherwise
    whole = iter([change[:1], change[1:]])
    answers = answering_of(model.card).answers
    result = compare(
        model, FakeRunner(model, lambda logits: logits + next(whole)), pixels, "pictures", answers
    )
    assert (result.images, result.answers, result.same) == (3, 3, 2)
    expected_error = math.sqrt(np.square(change).mean()) / expected.std()
    assert result.logit_error == pytest.approx(expected_error, rel=1e-4)
    assert str(result).startswith("2 of 3 answers as in float32 (66.67%")


def test_logits_that_are_all_alike_have_no_spread() -> None:
    model = small()
    assert isinstance(model.head, nn.Linear)
    for part in model.head.parameters():
        nn.init.zeros_(part)
    pixels = example_images(model, 4).numpy()
    assert compare(model, FakeRunner(model), pixels, "pictures").logit_error == 0
    assert compare(model, FakeRunner(model, lambda logits: logits + 1), pixels, "").logit_error == math.inf


def test_answers_are_those_of_the_task() -> None:
    outputs = np.array([[0.1, 2.0, -1.0], [-3.0, -2.0, -1.0]], np.float32)
    single_label = answering_of(Card(task=Task()))
    multi_label = answering_of(Card(task=Task("multi-label", "sigmoid")))
    assert single_label.answers(outputs).tolist() == [[1], [2]]
    assert multi_label.answers(outputs).tolist() == [[1, 1, 0], [0, 0, 0]]
