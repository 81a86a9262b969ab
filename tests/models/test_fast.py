"""The faster ways to compute give what the plain one gives, values and gradients."""

import copy
import itertools
import pickle
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.nn.utils import parametrize

from tests.helpers.refusals import refused
from tests.models.variants import VARIANTS as CHANGES
from vitkit.kernels import block as block_kernel
from vitkit.models import fast
from vitkit.models.build import build_model
from vitkit.models.config import DINOV3_ROTARY, PLAIN, BackboneConfig, Compute, ViTConfig
from vitkit.models.fast import compute_as
from vitkit.models.image_model import autocast
from vitkit.models.known_parts import FIELDS
from vitkit.models.parts import MLP, Attention, Block
from vitkit.models.vit import ViT
from vitkit.models.zoo import VIT5

SMALL = ViTConfig((12, 20), (4, 4), width=32, depth=2, num_heads=4, mlp_dim=48, num_classes=5)
VARIANTS = {name: replace(SMALL, **changes) for name, changes in CHANGES.items()} | {
    "the original": SMALL,
    "one block": replace(SMALL, depth=1),
    "no pooling": replace(SMALL, pool="none"),
    "convolutional stem": replace(SMALL, patch_size=(4, 4), stem_channels=(8, 16), stem_strides=(2, 2)),
    "other sizes": replace(
        SMALL,
        image_size=(16, 12),
        patch_size=(2, 3),
        width=24,
        num_heads=2,
        mlp_dim=20,
        num_classes=3,
        in_channels=1,
        image_mean=(0.4,),
        image_std=(0.3,),
    ),
    "dropped in training alone": replace(SMALL, dropout=0.1, attention_dropout=0.1, drop_path=0.1),
    "hybrid": replace(SMALL, image_size=(32, 48), patch_size=(1, 1), backbone=BackboneConfig((1, 1))),
}
ALL = Compute("float32", "explicit", "class_token", "compiled", "folded", "compiled")


def make(config: ViTConfig, way: Compute = PLAIN) -> ViT:
    """A model whose every parameter matters: nothing is left at zero."""
    model = build_model(config, torch.Generator().manual_seed(0))
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    compute_as(model, way)
    return model.double().eval()


def images(config: ViTConfig, count: int = 20) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    shape = (count, config.in_channels, *config.image_size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


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


CHOSEN_WAYS = [
    ({}, "class_token", "compiled", "compiled"),
    ({"norm": "rms"}, "class_token", "compiled", "modules"),
    ({"qk_norm": True}, "every_token", "compiled", "modules"),
    ({"qkv_bias": False}, "every_token", "compiled", "modules"),
    (VIT5, "every_token", "compiled", "modules"),
    ({"mlp": "swiglu"}, "class_token", "pytorch", "modules"),
    ({"mlp": "swiglu", "mlp_norm": True}, "class_token", "pytorch", "modules"),
    ({"position": "relative"}, "every_token", "compiled", "modules"),
    ({"position": "relative_bias"}, "every_token", "compiled", "modules"),
    ({"pool": "mean", "attention": "axial"}, "every_token", "compiled", "modules"),
    ({"pool": "mean", "register_tokens": 3}, "every_token", "compiled", "compiled"),
    ({"num_heads": 8}, "class_token", "compiled", "modules"),
    ({"pool": "token+mean"}, "every_token", "compiled", "compiled"),
    ({"final_norm": False}, "every_token", "compiled", "compiled"),
    (
        {"gelu": "erf", "layer_scale": 0.1, "rotary": DINOV3_ROTARY, "dropout": 0.1, "drop_path": 0.1},
        "class_token",
        "compiled",
        "compiled",
    ),
]


@pytest.mark.parametrize(("changes", "last_block", "gelu", "block"), CHOSEN_WAYS)
def test_ways_that_know_a_part_are_said(
    changes: dict[str, Any], last_block: str, gelu: str, block: str
) -> None:
    model = build_model(replace(SMALL, width=64, **changes))
    way = Compute("float32", "explicit", "class_token", "compiled", "folded", block="compiled")
    compute_as(model, way, torch.nn.functional.gelu, lambda *_: None)
    assert (model.chosen.attention, model.chosen.pixels) == ("explicit", "folded")
    assert (model.chosen.last_block, model.chosen.gelu, model.chosen.block) == (last_block, gelu, block)
    calls = list[int]()
    compute_as(model, Compute(block="compiled"), None, lambda x, *_: calls.append(len(x)))
    model.eval()(images(SMALL))
    assert len(calls) == (model.config.depth if block == "compiled" else 0)  # as often as it has blocks


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
        logits = torch.cat([model(images(config)) for _ in range(100)]).reshape(100, 20, 5).detach()
        results.append((logits.mean(0), logits.std(0) / 100**0.5))
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
    others = torch.zeros(20, 3, 8, 8, dtype=torch.uint8)
    refused("takes images of shape", make(SMALL, Compute(pixels="folded")), others)


@pytest.mark.parametrize(
    ("form", "way", "expected"), [("tanh", "compiled", 2), ("tanh", "pytorch", 0), ("erf", "compiled", 2)]
)
def test_a_gelu_that_is_handed_in_computes_the_models_form(form: str, way: str, expected: int) -> None:
    calls = []

    def gelu(x: Tensor, form: str) -> Tensor:
        calls.append(x.shape)
        return torch.nn.functional.gelu(x, approximate="tanh" if form == "tanh" else "none")

    model = make(replace(SMALL, gelu=form))  # type: ignore[arg-type]
    before = model(images(SMALL))
    compute_as(model, Compute(gelu=way), gelu)  # type: ignore[arg-type]
    assert torch.equal(model(images(SMALL)), before) and len(calls) == expected
    compute_as(model, PLAIN)
    model(images(SMALL))
    assert len(calls) == expected


WIDE = replace(SMALL, width=64)  # whose blocks the kernel computes


def kernels() -> tuple[block_kernel.Gelu | None, fast.BlockFunction | None]:
    return block_kernel.compiled_gelu(), block_kernel.compiled_block("float32")


def make_fast(config: ViTConfig = WIDE) -> ViT:
    """A model that computes in all other ways at once, as far as this machine has a compiler."""
    model = make(config).float()
    compute_as(model, ALL, *kernels())
    return model


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copied", "pickled"]
)
def test_a_copy_computes_in_the_same_way_through_its_own_weights(copied: Callable[[ViT], ViT]) -> None:
    model = make_fast()
    expected = outputs_and_gradients(model, images(SMALL))
    plain = make(WIDE).float()(images(SMALL))
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
    monkeypatch.setattr(block_kernel, "compiled_block", lambda *_: None)
    monkeypatch.setattr(block_kernel, "compiled_gelu", lambda *_: None)
    other = pickle.loads(pickled)
    assert not [part for part in other.modules() if part.__dict__.get("compiled") is not None]
    torch.testing.assert_close(other(images(SMALL)), expected, rtol=1e-3, atol=1e-4)


def test_a_fast_model_is_freed_with_its_last_name() -> None:
    """A copy that times a step must not stay in memory until Python looks for circles."""
    model = make_fast()
    freed = weakref.ref(model.blocks[0]), weakref.ref(model)
    del model
    assert [part() for part in freed] == [None, None]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # PyTorch looks itself
def test_blocks_are_compiled_once_for_all_and_their_copies_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's own kernels behind the graph: those of Triton need a GPU."""
    counted = CompileCounter()

    def compile_part(part: nn.Module) -> None:
        part._compiled_call_impl = torch.compile(part._call_impl, backend=counted, fullgraph=True)

    monkeypatch.setattr(nn.Module, "compile", compile_part)
    generator = torch.Generator().manual_seed(0)
    model = build_model(replace(SMALL, depth=12, drop_path=0.2)).eval()
    assert isinstance(model, ViT)
    nn.init.normal_(model.head.weight, generator=generator)  # type: ignore[arg-type]
    images = torch.randint(0, 256, (2, 3, 12, 20), dtype=torch.uint8, generator=generator)

    def logits_and_gradients() -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(images)
        logits.square().sum().backward()
        return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    plain = logits_and_gradients()
    compute_as(model, Compute(last_block="class_token", graph="compiled"))
    block = model.blocks[0]
    assert block._compiled_call_impl is not None
    assert copy.deepcopy(block)._compiled_call_impl is None  # else it would compute with these weights
    for recompute in (False, True):
        model.recompute = recompute
        for value, expected in zip(logits_and_gradients(), plain, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-3, atol=1e-4)
    model.train()
    logits_and_gradients()
    assert (
        counted.frame_count <= 4
    )  # for evaluation, with and without recomputing, and training: not for 12 blocks
    compute_as(model, PLAIN)
    assert block._compiled_call_impl is None


# Whatever is put into a model is computed in every way, or the way is not taken.


class LowRank(nn.Linear):
    """A linear layer with an adapter beside it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.down = nn.Parameter(torch.full((2, base.in_features), 0.3))
        self.up = nn.Parameter(torch.full((base.out_features, 2), 0.3))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.down.T @ self.up.T


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Quantised(Tensor):
    """The weights of another library, which compute something else in a product."""


class Doubling(Block):
    """A block of somebody else's."""

    def forward(self, x: Tensor, *taps: object) -> Tensor:
        return 2 * x


class Louder(Attention):
    """Attention of somebody else's, within a plain block."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, dropout: float) -> Tensor:
        return super().attend(q, k, 2 * v, bias, dropout)


def adapt(part: nn.Module, name: str) -> None:
    setattr(part, name, LowRank(part.get_submodule(name)))  # type: ignore[arg-type]


def change_output(module: nn.Module, given: object, out: Tensor) -> Tensor:
    return out.sin()


def change_input(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return given[0].sin(), *given[1:]


def replace_forward(part: nn.Module) -> None:
    own = part.forward
    part.forward = lambda *given: 2 * own(*given)


def quantise(layer: nn.Module) -> None:
    weight = layer.get_parameter("weight")
    layer.weight = nn.Parameter((weight.detach() * 2).as_subclass(Quantised))


def pool_the_second(model: ViT) -> None:
    class Second(nn.Module):
        def forward(self, encoded: Tensor) -> Tensor:
            return encoded[:, min(1, encoded.shape[1] - 1)]

    model.pooling = Second()  # type: ignore[assignment]


ADDITIONS: dict[str, Callable[[ViT], object]] = {
    "an adapter of the queries, keys and values": lambda model: adapt(model.blocks[-1].attention, "qkv"),  # type: ignore[arg-type]
    "an adapter of the MLP": lambda model: adapt(model.blocks[-1].mlp, "fc1"),  # type: ignore[arg-type]
    "a hook": lambda model: model.blocks[-1].attention.register_forward_hook(change_output),  # type: ignore[union-attr]
    "a hook before a layer": lambda model: model.blocks[-1].norm2.register_forward_pre_hook(change_input),  # type: ignore[union-attr]
    "a hook of a block": lambda model: model.blocks[-1].register_forward_hook(change_output),
    "a hook of the stem": lambda model: model.stem.register_forward_hook(change_output),
    "a parametrisation": lambda model: parametrize.register_parametrization(
        model.blocks[-1].attention.out,  # type: ignore[arg-type,union-attr]
        "weight",
        Doubled(),
    ),
    "weights of another kind": lambda model: quantise(model.blocks[-1].mlp.fc2),  # type: ignore[arg-type,union-attr]
    "a forward of its own": lambda model: replace_forward(model.blocks[-1].attention),  # type: ignore[arg-type]
    "another pooling": pool_the_second,
    "a block of another class": lambda model: setattr(model.blocks[0], "__class__", Doubling),
    "a last block of another class": lambda model: setattr(model.blocks[-1], "__class__", Doubling),
    "attention of another class": lambda model: setattr(model.blocks[0].attention, "__class__", Louder),
    "last attention of another class": lambda model: setattr(model.blocks[-1].attention, "__class__", Louder),
    "a layer without a bias": lambda model: setattr(model.blocks[-1].norm1, "bias", None),
}


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("addition", ADDITIONS)
def test_an_addition_is_computed_in_every_way(addition: str, late: bool) -> None:
    """Whether it is there when the ways are chosen, or comes into a model that computes in them already."""
    expected, model = make(WIDE).float(), make(WIDE).float()
    seen, plain = images(WIDE), make(WIDE).float()(images(WIDE))
    ADDITIONS[addition](expected)
    if late:
        compute_as(model, ALL, *kernels())
        model(seen)
    ADDITIONS[addition](model)
    if not late:
        compute_as(model, ALL, *kernels())
    logits = model(seen)
    assert (logits - plain).abs().max() > 0.01  # or the addition would be nothing
    torch.testing.assert_close(logits, expected(seen), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["blocks.0.attention", "blocks.1.mlp", "blocks.1", "norm", "pooling", "stem"]
)
def test_a_hook_is_called_as_often_and_with_as_much_as_in_the_plain_way(name: str) -> None:
    shapes: list[torch.Size] = []
    model = make(WIDE).float()
    model.get_submodule(name).register_forward_hook(lambda module, given, out: shapes.append(given[0].shape))
    model(images(WIDE))
    expected = list(shapes)
    shapes.clear()
    compute_as(model, ALL, *kernels())
    model(images(WIDE))
    assert shapes == expected and len(shapes) == 1


@pytest.fixture
def normed_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norm the values in `Attention` itself, as somebody would who adds an option to it."""
    build = Attention.__init__

    def build_with_norm(self: Attention, width: int, num_heads: int, **options: object) -> None:
        build(self, width, num_heads, **options)  # type: ignore[arg-type]
        self.v_norm = nn.LayerNorm(width // num_heads)

    def attend(self: Attention, x: Tensor, taps: object = None, name: str = "") -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.attend(qkv[0], qkv[1], self.v_norm(qkv[2]), None, 0.0)  # type: ignore[operator]
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out

    monkeypatch.setattr(Attention, "__init__", build_with_norm)
    monkeypatch.setattr(Attention, "forward", attend)


@pytest.mark.usefixtures("normed_values")
def test_a_norm_that_is_added_to_attention_is_computed_in_every_way() -> None:
    model, seen = make(WIDE).float(), images(WIDE)
    logits = model(seen)
    compute_as(model, ALL, *kernels())
    assert torch.equal(model(seen), logits) or kernels()[0] is not None
    torch.testing.assert_close(model(seen), logits, rtol=1e-3, atol=1e-4)
    # What is recorded is what is computed: the parts that it is not in are fast.
    assert model.chosen == Compute(pixels="folded", gelu="compiled" if kernels()[0] else "pytorch")


@pytest.mark.usefixtures("normed_values")
def test_a_norm_that_attention_pooling_does_not_know_is_refused() -> None:
    model = make(replace(WIDE, pool="map"))
    refused("Found one with other layers, parameters or hooks", model, images(WIDE))


def test_every_field_of_a_configuration_is_known_and_tried_in_every_way() -> None:
    """`VARIANTS` is the list over which each way is compared with the plain one, values and gradients."""
    names = {field.name for field in fields(ViTConfig)}
    assert FIELDS.keys() == names
    for name in names:
        assert any(getattr(config, name) != getattr(SMALL, name) for config in VARIANTS.values()), name


def test_a_field_that_is_not_known_leaves_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vitkit.models.known_parts.FIELDS", {name: None for name in FIELDS if name != "norm_after_pooling"}
    )
    model = make_fast()
    assert model.chosen == PLAIN


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rule_for_configurations_is_that_for_parts(variant: str) -> None:
    """Records and forecasts go by the configuration, the model by its parts."""
    config = replace(VARIANTS[variant], width=64)
    model = make_fast(config)
    gelu, block = kernels()
    assert model.chosen == Compute(
        "float32",
        attention="explicit" if fast.EXPLICIT_ATTENTION.computes(config) else "fused",
        last_block="class_token" if fast.CLASS_TOKEN.computes(config) else "every_token",
        gelu="compiled" if gelu and fast.COMPILED_GELU.computes(config) else "pytorch",
        pixels="folded" if fast.FOLDED_PIXELS.computes(config) else "normalized",
        block="compiled" if block and fast.block_can_be_compiled(config) else "modules",
    )


def test_a_copy_looks_at_its_own_parts() -> None:
    model = make_fast()
    model(images(WIDE))
    other = copy.deepcopy(model)
    adapt(other.blocks[-1].mlp, "fc1")  # type: ignore[arg-type]
    expected = copy.deepcopy(other)
    compute_as(expected, PLAIN)
    torch.testing.assert_close(other(images(WIDE)), expected(images(WIDE)), rtol=1e-3, atol=1e-4)
    assert type(model.blocks[-1].mlp) is not MLP or kernels()[0] is None
