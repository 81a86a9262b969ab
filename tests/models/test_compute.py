"""The faster ways to compute give what the plain one gives, values and gradients."""

import copy
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.compute_config import (
    PLAIN,
    Compute,
    Phase,
    block_can_be_compiled,
    choose_compute,
)
from vitkit.models.precision import autocast, device_features
from vitkit.models.resnet_config import BackboneConfig
from vitkit.models.vit import ViT
from vitkit.models.vit_config import DINOV3_ROTARY, ViTConfig
from vitkit.models.zoo import model_config, vit_config

SMALL = ViTConfig((12, 20), (4, 4), width=32, depth=2, num_heads=4, mlp_dim=48, num_classes=5)
VARIANTS = {
    "the original": SMALL,
    "registers": replace(SMALL, register_tokens=3),
    "pre-norm and layer scale": replace(SMALL, norm_before_blocks=True, layer_scale=0.3),
    "norm after pooling": replace(SMALL, norm_after_pooling=True),
    "positions at every layer": replace(SMALL, position_at="every_layer"),
    "representation": replace(SMALL, representation_size=7),
    "one block": replace(SMALL, depth=1),
    "relative positions": replace(SMALL, position="relative"),
    "rotary positions": replace(SMALL, rotary=DINOV3_ROTARY),
    "mean": replace(SMALL, pool="mean"),
    "mean beside a class token": replace(SMALL, pool="mean", extra_class_token=True),
    "max": replace(SMALL, pool="max"),
    "map": replace(SMALL, pool="map"),
    "no pooling": replace(SMALL, pool="none"),
    "axial": replace(SMALL, pool="mean", attention="axial"),
    "hybrid": replace(SMALL, image_size=(32, 48), patch_size=(1, 1), backbone=BackboneConfig((1, 1))),
}
WAYS = {
    "explicit attention": Compute(attention="explicit"),
    "class token": Compute(last_block="class_token"),
    "folded pixels": Compute(pixels="folded"),
    "all": Compute("float32", "explicit", "class_token", pixels="folded"),
}


def make(config: ViTConfig, way: Compute = PLAIN) -> ViT:
    """A model whose every parameter matters: nothing is left at zero."""
    model = build_model(config, torch.Generator().manual_seed(0))
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    model.compute_as(way)
    return model.double().eval()


def images(config: ViTConfig, count: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (count, 3, *config.image_size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def outputs_and_gradients(model: ViT, seen: Tensor) -> list[Tensor]:
    logits = model(seen)
    logits.square().sum().backward()
    return [logits, *(torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters())]


@pytest.mark.parametrize(("variant", "way"), list(itertools.product(VARIANTS, WAYS)))
def test_every_way_gives_the_same_logits_and_gradients(variant: str, way: str) -> None:
    """In float64, where rounding is far below what a wrong formula would change."""
    config = VARIANTS[variant]
    expected = outputs_and_gradients(make(config), images(config))
    found = outputs_and_gradients(make(config, WAYS[way]), images(config))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_the_last_block_computes_the_class_token_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SMALL, Compute(last_block="class_token"))
    rows = []
    model.blocks[-1].mlp.register_forward_hook(lambda module, given, out: rows.append(out.shape[1]))  # type: ignore[union-attr]
    model(images(SMALL))
    model.features(images(SMALL))
    model.encode(model.embed(images(SMALL)))
    model(images(SMALL), taps={})
    assert rows == [1, 1, SMALL.num_tokens, SMALL.num_tokens]


def test_explicit_attention_is_explicit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(SMALL, Compute(attention="explicit"))
    monkeypatch.delattr(torch.nn.functional, "scaled_dot_product_attention")
    model(images(SMALL))
    model.compute_as(PLAIN)
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
    found = make(SMALL, WAYS["all"]).features(seen, any_size=True)
    expected = make(SMALL).features(seen, any_size=True)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


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
            errors.append((model.patches(images(config)) - exact).abs().max().item())
    assert errors[1] <= 1.2 * errors[0]  # both round the weights and the result


def test_folded_pixels_of_another_size_are_refused_as_others() -> None:
    with pytest.raises(VitkitError, match="takes images of shape"):
        make(SMALL, Compute(pixels="folded"))(torch.zeros(20, 3, 8, 8, dtype=torch.uint8))


def choose(model: str | ViTConfig = "ViT-S/16", **facts: object) -> Compute:
    options: dict[str, object] = {"device": "cpu", "features": {"avx512_bf16"}, "phase": "training"}
    config = model_config(model) if isinstance(model, str) else model
    return choose_compute(config, **{**options, **facts})  # type: ignore[arg-type]


def test_what_is_chosen_follows_from_machine_and_model() -> None:
    assert choose() == Compute("bfloat16", "explicit", "class_token")
    assert choose(features={"amx_bf16"}) == choose()
    assert choose(phase="prediction") == Compute("float32", "fused", "class_token", pixels="folded")
    asked = choose(phase="evaluation", precision="bfloat16")
    assert asked == Compute("bfloat16", "explicit", "class_token", pixels="folded")
    assert choose(features={"avx2"}) == Compute("float32", "fused", "class_token")
    assert choose(precision="float32") == Compute("float32", "fused", "class_token")
    assert choose(features=(), precision="bfloat16") == Compute("bfloat16", "explicit", "class_token")
    assert choose(compiler=True) == replace(choose(), gelu="compiled", block="compiled")
    assert choose(compiler=True, phase="evaluation").gelu == "compiled"
    assert choose(compiler=True, phase="prediction").gelu == "pytorch"
    assert choose(compiler=True, exact=True) == PLAIN
    assert choose(compiler=True, precision="float32").block == "compiled"
    assert choose(compiler=True, phase="evaluation").block == "compiled"
    for facts in ({"exact": True}, {"phase": "prediction"}, {"device": "cuda"}):
        assert choose(compiler=True, **facts).block == "modules"
    assert choose("ViT-64x4x4/4").precision == "float32"
    assert choose("ViT-96x6x3/4").precision == "bfloat16"
    assert choose("ViT-128x6x2/4").precision == "bfloat16"
    assert choose("BiT-R50x1") == choose("BiT-R1-1x0.5") == Compute("bfloat16")
    assert choose("BiT-R50x1", phase="evaluation") == PLAIN
    assert choose("R1-1x0.5+ViT-128x2x2/8").precision == "bfloat16"
    assert choose("R1-1x0.5+ViT-64x2x2/8").precision == "float32"
    assert choose("R50+ViT-B/16", phase="prediction") == Compute("float32", "fused", "class_token")
    assert choose(device="cuda", features={"bfloat16"}) == Compute("bfloat16", "fused", "class_token")
    assert choose(device="cuda", features=()).precision == "float32"


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


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "drop_path"])
def test_blocks_that_drop_at_random_are_compiled_for_evaluation_alone(kind: str) -> None:
    config = replace(SMALL, width=64, **{kind: 0.1})  # type: ignore[arg-type]
    assert choose(config, compiler=True).block == "modules"
    assert choose(config, compiler=True, phase="evaluation").block == "compiled"


def test_long_sequences_are_compiled_in_bfloat16_alone() -> None:
    """In float32 their attention weights would be memory that the fused attention does not take."""
    chosen = {"float32": ("compiled", "modules", "modules"), "bfloat16": ("compiled", "compiled", "modules")}
    for precision, expected in chosen.items():
        for size, block in zip((224, 384, 512), expected, strict=True):
            config = vit_config("ViT-S/16", image_size=size)
            assert choose(config, precision=precision, compiler=True).block == block


def test_long_sequences_keep_the_fused_attention() -> None:
    facts = {"device": "cpu", "features": {"amx_bf16"}, "phase": "training"}
    sizes = {384: "explicit", 512: "fused"}
    for size, expected in sizes.items():
        config = model_config("ViT-S/16", image_size=(size, size))
        assert choose_compute(config, **facts).attention == expected  # type: ignore[arg-type]


def test_exact_is_the_first_version() -> None:
    assert choose(exact=True) == choose(exact=True, phase="prediction") == PLAIN
    assert choose(exact=True, precision="bfloat16") == Compute("bfloat16")
    assert choose(exact=True, device="cuda", features={"bfloat16"}) == Compute("bfloat16")


def test_no_capabilities_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device_features(torch.device("cpu")) == {
        n for n, v in torch.cpu.get_capabilities().items() if v is True
    }
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert device_features(torch.device("cpu")) == frozenset()
    assert device_features(torch.device("meta")) == frozenset()


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
    model.compute_as(Compute(gelu=way), gelu)  # type: ignore[arg-type]
    assert torch.equal(model(images(SMALL)), before) and len(calls) == expected
    model.compute_as(PLAIN)
    model(images(SMALL))
    assert len(calls) == expected


def test_a_gpu_that_can_compile_trains_a_compiled_model() -> None:
    cases: list[tuple[str, set[str], Phase, bool]] = [
        ("cuda", {"bfloat16", "triton"}, "training", False),
        ("cuda", {"bfloat16", "triton"}, "training", True),
        ("cuda", {"bfloat16", "triton"}, "evaluation", False),
        ("cuda", {"bfloat16"}, "training", False),
        ("cpu", {"triton"}, "training", False),
    ]
    chosen = [
        choose_compute(SMALL, device=device, features=features, phase=phase, exact=exact).graph
        for device, features, phase, exact in cases
    ]
    assert chosen == ["compiled", "eager", "eager", "eager", "eager"]


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

    def found() -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(images)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    plain = found()
    model.compute_as(Compute(last_block="class_token", graph="compiled"))
    assert model._compiled_call_impl is not None
    assert copy.deepcopy(model)._compiled_call_impl is None  # else it would compute with these weights
    for recompute in (False, True):
        model.recompute = recompute
        for value, expected in zip(found(), plain, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    model.compute_as(PLAIN)
    assert model._compiled_call_impl is None
