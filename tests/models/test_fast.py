"""The faster ways to compute give what the plain one gives, values and gradients."""

import copy
import itertools
import pickle
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.vit_variants import ALL, SMALL, VARIANTS, images, make
from vitkit.errors import VitkitError
from vitkit.kernels import block as block_kernel
from vitkit.kernels import gelu as gelu_kernel
from vitkit.models.build import build_model
from vitkit.models.config import DINOV3_ROTARY, PLAIN, Compute
from vitkit.models.fast import block_can_be_compiled, compute_as
from vitkit.models.image_model import autocast
from vitkit.models.parts import MLP, Attention, Block
from vitkit.models.vit import ViT
from vitkit.models.zoo import VIT5

WAYS = {
    "explicit attention": Compute(attention="explicit"),
    "class token": Compute(last_block="class_token"),
    "folded pixels": Compute(pixels="folded"),
    "all": Compute("float32", "explicit", "class_token", pixels="folded"),
}


def outputs_and_gradients(model: ViT, seen: Tensor) -> list[Tensor]:
    logits = model(seen)
    logits.square().sum().backward()
    return [logits, *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]


@pytest.mark.parametrize(("variant", "way"), list(itertools.product(VARIANTS, WAYS)))
def test_every_way_gives_the_same_logits_and_gradients(variant: str, way: str) -> None:
    """In float64, where rounding is far below what a wrong formula would change."""
    config = VARIANTS[variant]
    expected = outputs_and_gradients(make(config), images(config))
    computed = outputs_and_gradients(make(config, WAYS[way]), images(config))
    for tensor, plain in zip(computed, expected, strict=True):
        torch.testing.assert_close(tensor, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "last_block", "gelu", "block"),
    [
        ({}, "class_token", "compiled", "compiled"),
        ({"norm": "rms"}, "class_token", "compiled", "modules"),
        ({"qk_norm": True}, "every_token", "compiled", "modules"),
        ({"qkv_bias": False}, "every_token", "compiled", "modules"),
        (VIT5, "every_token", "pytorch", "modules"),
    ],
)
def test_the_record_says_which_ways_know_a_part(
    changes: dict[str, Any], last_block: str, gelu: str, block: str
) -> None:
    model = build_model(replace(SMALL, width=64, **changes))
    way = Compute("float32", "explicit", "class_token", "compiled", "folded", block="compiled")
    compute_as(model, way, torch.nn.functional.gelu, lambda *_: None)
    assert (model.chosen.attention, model.chosen.pixels) == ("explicit", "folded")
    assert (model.chosen.last_block, model.chosen.gelu, model.chosen.block) == (last_block, gelu, block)


def test_the_last_block_computes_the_class_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SMALL, Compute(last_block="class_token"))
    rows, whole = [], MLP.forward

    def forward(self: MLP, x: Tensor) -> Tensor:
        if self is model.blocks[-1].mlp:
            rows.append(x.shape[1])
        return whole(self, x)

    monkeypatch.setattr(MLP, "forward", forward)
    model(images(SMALL))
    model.features(images(SMALL))
    model.encode(model.embed(images(SMALL)))
    model(images(SMALL), taps={})
    assert rows == [1, 1, SMALL.num_tokens, SMALL.num_tokens]


def test_explicit_attention_is_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SMALL, Compute(attention="explicit"))
    monkeypatch.delattr(torch.nn.functional, "scaled_dot_product_attention")
    model(images(SMALL))
    compute_as(model, PLAIN)
    with pytest.raises(AttributeError):
        model(images(SMALL))


def test_taps_are_those_of_the_plain_way() -> None:
    seen: dict[str, Tensor] = {}
    expected: dict[str, Tensor] = {}
    make(SMALL, WAYS["all"])(images(SMALL), taps=seen, attention_weights=True)
    make(SMALL)(images(SMALL), taps=expected, attention_weights=True)
    assert seen.keys() == expected.keys() and "block01/attention_weights" in seen
    for name, value in seen.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-9)


def test_other_image_sizes_are_shortened_too() -> None:
    seen = torch.zeros(2, 3, 16, 16, dtype=torch.double)
    features = make(SMALL, WAYS["all"]).features(seen, any_size=True)
    expected = make(SMALL).features(seen, any_size=True)
    torch.testing.assert_close(features, expected, rtol=1e-9, atol=1e-9)


def test_dropout_of_the_class_token_alone_has_the_same_mean() -> None:
    """The draws are others, so that the means over many are compared: within five standard errors."""
    config = replace(SMALL, depth=1, attention_dropout=0.4)
    results = []
    for way in (PLAIN, Compute(last_block="class_token"), Compute(attention="explicit")):
        model = make(config, way).train()
        torch.manual_seed(0)
        logits = torch.cat([model(images(config)) for _ in range(200)]).reshape(200, 20, 5).detach()
        results.append((logits.mean(0), logits.std(0) / 200**0.5))
        assert not torch.equal(logits[0], logits[1])
    (expected, error), *others = results
    for mean, own in others:
        assert ((mean - expected).abs() < 5 * (error.square() + own.square()).sqrt()).all()


@pytest.mark.parametrize("mean", [0.5, 0.1])
def test_folded_pixels_lose_nothing_in_bfloat16(mean: float) -> None:
    """They are whole numbers, which bfloat16 holds exactly: the error does not grow."""
    config = replace(SMALL, image_mean=(mean,) * 3, image_std=(0.2, 0.3, 0.4))
    errors = []
    exact = make(config).patches(images(config))
    for way in (PLAIN, Compute(pixels="folded")):
        model = make(config, way).float()
        with autocast(torch.device("cpu"), "bfloat16"):
            errors.append((model.patches(images(config)) - exact).square().mean().item())
    assert errors[1] <= errors[0]  # both round the weights and the result, and one the pixels too


def test_folded_pixels_of_another_size_are_refused_as_others() -> None:
    with pytest.raises(VitkitError, match="takes images of shape"):
        make(SMALL, Compute(pixels="folded"))(torch.zeros(20, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, True),
        ({"pool": "mean", "register_tokens": 3}, True),
        ({"layer_scale": 0.1}, False),
        ({"gelu": "erf"}, False),
        ({"position": "relative"}, False),
        ({"rotary": DINOV3_ROTARY}, False),
        ({"pool": "mean", "attention": "axial"}, False),
        ({"num_heads": 8}, False),
    ],
)
def test_blocks_are_compiled_where_the_kernel_can(change: dict[str, object], expected: bool) -> None:
    config = replace(SMALL, width=64, **change)  # type: ignore[arg-type]
    assert block_can_be_compiled(config) == expected


@pytest.mark.parametrize(
    ("form", "way", "expected"), [("tanh", "compiled", 2), ("tanh", "pytorch", 0), ("erf", "compiled", 0)]
)
def test_a_gelu_that_is_handed_in_computes_the_tanh_form(form: str, way: str, expected: int) -> None:
    calls = []

    def gelu(x: Tensor) -> Tensor:
        calls.append(x.shape)
        return torch.nn.functional.gelu(x, approximate="tanh")

    model = make(replace(SMALL, gelu=form))  # type: ignore[arg-type]
    before = model(images(SMALL))
    compute_as(model, Compute(gelu=way), gelu)  # type: ignore[arg-type]
    assert torch.equal(model(images(SMALL)), before) and len(calls) == expected
    compute_as(model, PLAIN)
    model(images(SMALL))
    assert len(calls) == expected


def make_fast() -> ViT:
    """A model that computes in all other ways at once, as far as this machine has a compiler."""
    model = make(replace(SMALL, width=64)).float()
    compute_as(model, ALL, gelu_kernel.compiled_gelu(), block_kernel.compiled_block("float32"))
    return model


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"]
)
def test_a_copy_computes_in_the_same_way_through_its_own_weights(copied: Callable[[ViT], ViT]) -> None:
    model = make_fast()
    expected = outputs_and_gradients(model, images(SMALL))
    plain = make(replace(SMALL, width=64)).float()(images(SMALL))
    other = copied(model)
    other.zero_grad()
    assert [type(part) for part in other.modules()] == [type(part) for part in model.modules()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for value, before in zip(outputs_and_gradients(other, images(SMALL)), expected, strict=True):
        assert torch.equal(value, before)
    assert all(parameter.grad is None or not parameter.any() for parameter in model.parameters())
    compute_as(other, PLAIN)
    assert torch.equal(other(images(SMALL)), plain)  # nothing is left of the other ways


def test_a_pickle_computes_with_modules_where_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_fast()
    expected, pickled = model(images(SMALL)), pickle.dumps(model)
    monkeypatch.setattr(block_kernel, "compiled_block", lambda precision: None)
    monkeypatch.setattr(gelu_kernel, "compiled_gelu", lambda: None)
    other = pickle.loads(pickled)
    assert not [part for part in other.modules() if part.__dict__.get("compiled") is not None]
    torch.testing.assert_close(other(images(SMALL)), expected, rtol=1e-3, atol=1e-4)


def test_a_fast_model_is_freed_with_its_last_name() -> None:
    """A copy that times a step must not stay in memory until Python looks for circles."""
    model = make_fast()
    freed = weakref.ref(model.blocks[0]), weakref.ref(model)
    del model
    assert [part() for part in freed] == [None, None]


class Doubling(Block):
    """A block of somebody else's."""

    def forward(self, x: Tensor, *taps: object) -> Tensor:
        return 2 * x


@pytest.mark.parametrize("number", [0, 1])
def test_blocks_of_other_classes_stay_as_they_are(number: int) -> None:
    model = make(replace(SMALL, width=64)).float()
    model.blocks[number].__class__ = Doubling
    expected = model(images(SMALL))
    compute_as(model, replace(ALL, gelu="pytorch"), None, block_kernel.compiled_block("float32"))
    assert type(model.blocks[number]) is Doubling
    torch.testing.assert_close(model(images(SMALL)), expected, rtol=1e-3, atol=1e-4)


class Louder(Attention):
    """Attention of somebody else's, within a plain block."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        return super().attend(q, k, 2 * v, bias, dropout)


@pytest.mark.parametrize("number", [0, 1])
def test_parts_of_other_classes_are_not_left_out_of_their_blocks(number: int) -> None:
    model = make(replace(SMALL, width=64)).float()
    model.blocks[number].attention.__class__ = Louder
    expected = model(images(SMALL))
    compute_as(model, replace(ALL, gelu="pytorch"), None, block_kernel.compiled_block("float32"))
    torch.testing.assert_close(model(images(SMALL)), expected, rtol=1e-3, atol=1e-4)


def test_a_model_without_blocks_computes_in_every_way() -> None:
    model = make(SMALL).float()
    model.blocks = nn.ModuleList()
    expected = model(images(SMALL))
    compute_as(model, Compute(last_block="class_token"))
    assert torch.equal(model(images(SMALL)), expected)


def test_a_compiled_model_is_one_graph_and_its_copies_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With PyTorch's own kernels behind the graph: those of Triton need a GPU."""

    def compile_whole(model: nn.Module) -> None:
        model._compiled_call_impl = torch.compile(model._call_impl, backend="eager", fullgraph=True)

    monkeypatch.setattr(nn.Module, "compile", compile_whole)
    generator = torch.Generator().manual_seed(0)
    model = build_model(SMALL).train()
    nn.init.normal_(model.head.weight, generator=generator)  # type: ignore[arg-type]
    images = torch.randint(0, 256, (2, 3, 12, 20), dtype=torch.uint8, generator=generator)

    def logits_and_gradients() -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(images)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    plain = logits_and_gradients()
    compute_as(model, Compute(last_block="class_token", graph="compiled"))
    assert model._compiled_call_impl is not None
    assert copy.deepcopy(model)._compiled_call_impl is None  # else it would compute with these weights
    for recompute in (False, True):
        model.recompute = recompute
        for value, expected in zip(logits_and_gradients(), plain, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    compute_as(model, PLAIN)
    assert model._compiled_call_impl is None
