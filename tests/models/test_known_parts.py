"""Whatever is put into a model is computed in every way, or the way is not taken."""

import copy
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.helpers.vit_variants import ALL, SMALL, VARIANTS, images, make
from vitkit.errors import VitkitError
from vitkit.kernels import block as block_kernel
from vitkit.kernels import gelu as gelu_kernel
from vitkit.models import fast
from vitkit.models.config import PLAIN, Compute, ViTConfig
from vitkit.models.fast import compute_as
from vitkit.models.known_parts import FIELDS
from vitkit.models.parts import MLP, Attention
from vitkit.models.vit import ViT

WIDE = replace(SMALL, width=64)  # whose blocks the kernel computes


def kernels() -> tuple[gelu_kernel.Gelu | None, fast.BlockFunction | None]:
    return gelu_kernel.compiled_gelu(), block_kernel.compiled_block("float32")


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
    "a hook of a layer": lambda model: model.blocks[0].mlp.fc2.register_forward_hook(change_output),  # type: ignore[union-attr]
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
    "a stem's forward of its own": lambda model: replace_forward(model.stem),
    "another pooling": pool_the_second,
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
    with pytest.raises(VitkitError, match="Found one with other layers, parameters or hooks"):
        model(images(WIDE))


def test_every_field_of_a_configuration_is_known() -> None:
    assert FIELDS.keys() == {field.name for field in fields(ViTConfig)}


def test_every_field_of_a_configuration_is_tried_in_every_way() -> None:
    """`VARIANTS` is the list over which each way is compared with the plain one, values and gradients."""
    tried = {
        field.name
        for field in fields(ViTConfig)
        if any(getattr(config, field.name) != getattr(SMALL, field.name) for config in VARIANTS.values())
    }
    assert tried == {field.name for field in fields(ViTConfig)}


def test_a_field_that_is_not_known_leaves_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "vitkit.models.known_parts.FIELDS", {name: None for name in FIELDS if name != "norm_after_pooling"}
    )
    model = make(WIDE).float()
    compute_as(model, ALL, *kernels())
    assert model.chosen == PLAIN


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_rule_for_configurations_is_that_for_parts(variant: str) -> None:
    """Records and forecasts go by the configuration, the model by its parts."""
    config = replace(VARIANTS[variant], width=64)
    model = make(config).float()
    compute_as(model, ALL, *kernels())
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
    model = make(WIDE).float()
    compute_as(model, ALL, *kernels())
    model(images(WIDE))
    other = copy.deepcopy(model)
    adapt(other.blocks[-1].mlp, "fc1")  # type: ignore[arg-type]
    expected = copy.deepcopy(other)
    compute_as(expected, PLAIN)
    torch.testing.assert_close(other(images(WIDE)), expected(images(WIDE)), rtol=1e-3, atol=1e-4)
    assert type(model.blocks[-1].mlp) is not MLP or kernels()[0] is None
