"""The graph that engines are handed gives the model's logits, whatever the model is."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitkit
from tests.engines.models import NAMES, small
from vitkit.engines.folder import EngineModel
from vitkit.engines.graph import compare, example_images, graph_of, refuse_other_logits
from vitkit.errors import VitkitError
from vitkit.models.config import Card, Compute
from vitkit.models.fast import compute_as
from vitkit.models.parts import MLP, Attention, Block

VARIANTS = (
    "",
    "-gap",
    "-map",
    "-max",
    "-reg4",
    "-relative",
    "-sincos2d",
    "-sincos2dmae",
    "-everylayer",
    "-conv",
)


@pytest.mark.parametrize("name", [*VARIANTS, "-rms", "-qknorm"])
def test_the_graph_gives_the_logits_of_the_model(name: str) -> None:
    model = small(f"ViT-32x2x4/8{name}")
    images = example_images(model, 3)
    with torch.inference_mode():
        expected = model(images)
        logits = graph_of(model)(images)
    # Rounding of float32: sums of 192 products in another order.
    assert (logits - expected).abs().max() < 2e-5 * expected.abs().max()


def test_a_norm_that_is_added_to_attention_is_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Attention.__init__

    def build_with_norm(self: Attention, width: int, num_heads: int, **options: Any) -> None:
        build(self, width, num_heads, **options)
        self.added_norm = nn.LayerNorm(width // num_heads)

    def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, bias: None, dropout: float) -> Tensor:
        return F.scaled_dot_product_attention(self.added_norm(q), k, v)  # type: ignore[operator]

    with torch.inference_mode():
        plain = small()(example_images(small(), 3))
    monkeypatch.setattr(Attention, "__init__", build_with_norm)
    monkeypatch.setattr(Attention, "attend", attend)
    model = small()
    images = example_images(model, 3)
    with torch.inference_mode():
        assert (model(images) - plain).abs().max() > 1e-3
        torch.testing.assert_close(graph_of(model)(images), model(images), rtol=1e-4, atol=1e-5)


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


@pytest.mark.filterwarnings(
    "ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace:FutureWarning", "ignore::DeprecationWarning"
)
@pytest.mark.parametrize("name", ["", "-gap", "-map", "-reg4", "-qknorm-rms"])
def test_the_number_of_images_is_not_traced(name: str) -> None:
    """An engine is handed batches of any size, though the graph is made of two images."""
    model = small(f"ViT-32x2x4/8{name}")
    images = example_images(model, 5)
    with torch.inference_mode():
        graph = torch.jit.trace(graph_of(model), example_images(model))  # type: ignore[no-untyped-call]
        for batch in (images, images[:1]):
            torch.testing.assert_close(graph(batch), model(batch), rtol=1e-4, atol=1e-4)


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


def test_the_last_block_computes_the_class_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = []
    whole = Block.add_branches

    def seen(self: Block, x: torch.Tensor, *rest: object) -> torch.Tensor:
        shapes.append(x.shape[1])
        return whole(self, x, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Block, "add_branches", seen)
    model = small()
    graph_of(model)(example_images(model))
    assert shapes == [7, 1]


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
        with pytest.raises(vitkit.VitkitError, match=r"takes uint8 images \(B, 3, 16, 24\), found"):
            served(wrong)


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
