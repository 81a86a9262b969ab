"""The compiled encoder block against the modules, values and gradients."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from vitkit.kernels import block as kernel
from vitkit.kernels.block import compiled_block
from vitkit.kernels.compile import cached_beside
from vitkit.models.config import DINOV3_ROTARY, EVA02_ROTARY, Gelu, Precision, RotaryConfig
from vitkit.models.fast import HEAD_MULTIPLE, BlockFunction, CompiledBlock, ExplicitAttention, block_weights
from vitkit.models.image_model import autocast
from vitkit.models.known_parts import Watch
from vitkit.models.parts import MLP, Attention, Block, keep_mask
from vitkit.models.position import RotaryPosition2D

CPU = torch.device("cpu")
SIZES = {
    "one tile": (2, 6, 32, 2, 48),
    "fewer tokens than a tile has rows": (2, 3, 32, 2, 48),
    "an odd number of tokens": (3, 17, 64, 4, 100),
    "more than a piece of rows": (3, 50, 48, 3, 40),
    "one head of 32": (1, 33, 32, 1, 64),
    "a real one": (2, 197, 192, 3, 768),
}
"""Images, tokens, width, heads and hidden units."""


def block_or_skip(precision: Precision) -> kernel.Kernels:
    function = compiled_block(precision)
    if function is None:
        without = precision == "bfloat16" and not torch.cpu.get_capabilities().get("avx512_bf16")
        assert without or shutil.which("cc") is None, "there is a compiler, but no kernel"
        pytest.skip("no C compiler, or no products of bfloat16")
    return function


VARIANTS: dict[str, dict[str, Any]] = {
    "erf": {"gelu": "erf"},
    "quick": {"gelu": "quick"},
    "layer scale": {"layer_scale": 0.5},
    "stochastic depth": {"drop_path": 0.5},
    "dropout": {"dropout": 0.2},
    "neighbours turned": {"rotary": EVA02_ROTARY},
    "halves turned": {"rotary": DINOV3_ROTARY},
    "all": {"gelu": "erf", "layer_scale": 0.5, "drop_path": 0.3, "dropout": 0.1, "rotary": EVA02_ROTARY},
}


def make(
    width: int,
    heads: int,
    hidden: int,
    *,
    gelu: Gelu = "tanh",
    dropout: float = 0.0,
    rotary: RotaryConfig | None = None,
    **options: Any,
) -> Block:
    """A block whose every parameter matters; rotary positions are of a class token and 4 x 4 patches."""
    torch.manual_seed(0)
    turns = None if rotary is None else RotaryPosition2D((4, 4), width // heads, 1, rotary)
    mlp = MLP(width, hidden, gelu=gelu, dropout=dropout)
    block = Block(width, Attention(width, heads, rotary=turns), mlp, dropout=dropout, **options)
    with torch.no_grad():
        block.init_weights(None)
        for parameter in block.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return block


def compile_with(block: Block, function: BlockFunction) -> None:
    """Have a function compute a block, as `compute_as` does for those of a model."""
    block.__class__ = CompiledBlock
    block.__dict__ |= {"compiled": function, "watch": Watch()}


def results(block: Block, x: Tensor, grad: Tensor, precision: Precision = "float32") -> list[Tensor]:
    """Value, and the gradients of tokens and parameters."""
    block.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(7)  # of what is dropped
    with autocast(CPU, precision):
        out = block(x)
    out.backward(grad)
    return [out.detach(), *(t.grad for t in (x, *block.parameters()) if t.grad is not None)]


@pytest.mark.parametrize(
    ("size", "options"),
    [
        *((size, {}) for size in SIZES),
        *(pytest.param("an odd number of tokens", each, id=name) for name, each in VARIANTS.items()),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_values_and_gradients_are_as_near_to_the_exact_ones_as_the_modules(
    size: str, options: dict[str, Any], precision: Precision
) -> None:
    """In the mean square, of what float64 gives: the roundings are others, and not more. The same numbers and
    images are dropped."""
    function = block_or_skip(precision)
    images, tokens, width, heads, hidden = SIZES[size]
    block = make(width, heads, hidden, **options)
    x, grad = torch.randn(2, images, tokens, width)
    exact = results(make(width, heads, hidden, **options).double(), x.double(), grad.double())
    block.attention.__class__ = ExplicitAttention
    modules = results(block, x, grad, precision)
    compile_with(block, function)
    compiled = results(block, x, grad, precision)
    assert len(compiled) == len(exact) == (16 if "layer_scale" in options else 14)
    unit = 2**-8 if precision == "bfloat16" else 2**-23
    for own, other, reference in zip(compiled, modules, exact, strict=True):
        error, theirs = (own - reference).norm(), (other - reference).norm()
        assert own.dtype == torch.float32
        assert error <= 1.5 * theirs + unit * reference.norm()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_number_of_threads_changes_no_bit(precision: Precision) -> None:
    block, threads = make(64, 4, 128), torch.get_num_threads()
    kernels = block_or_skip(precision)
    weights = block_weights(block)
    x = torch.randn(7, 33, 64)
    runs = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            qkv, grad = torch.randn(2, 7, 33, 192, generator=torch.Generator().manual_seed(0)).to(
                kernels.number
            )
            mixed, attended = kernels.attention(qkv, weights[3].detach(), 4)
            back = kernels.attention_backward(grad[..., :64].contiguous(), qkv, weights[3].detach(), attended)
            rows = x.view(-1, 64)
            normed = kernels.norm(rows, None, None, weights[0].detach(), weights[1].detach(), 1e-6)
            keys = torch.arange(14, dtype=torch.int32).view(7, 2)
            product, bias = qkv.view(-1, 192)[:, :64].contiguous(), weights[1].detach()
            branch = kernel.Branch(bias, bias, torch.arange(7.0), kernel.Drop(keys, 0.3), 33)
            through = kernels.norm_backward(
                normed[1], rows, normed[2], weights[0].detach(), rows, product, branch
            )
            summed = kernels.norm(rows, product, branch, weights[0].detach(), bias, 1e-6)
            of_branch = kernels.branch_backward(rows, product, branch)
            runs.append([mixed, attended, *back, *normed, *through, *summed, *of_branch])
    finally:
        torch.set_num_threads(threads)
    for alone, threaded in zip(*runs, strict=True):
        assert torch.equal(alone, threaded)


def test_what_the_kernel_was_not_made_for_is_computed_by_modules() -> None:
    assert HEAD_MULTIPLE == kernel.PADDING  # models know which heads it computes
    function = block_or_skip("float32")
    block = make(32, 2, 48)
    weights = block_weights(block)
    x = torch.randn(2, 5, 32)
    assert function(x, weights, 2, 1e-6) is not None
    assert function(x, weights, 4, 1e-6) is None  # heads of 8
    assert function(x.double(), weights, 2, 1e-6) is None
    assert function(x.bfloat16(), weights, 2, 1e-6) is None
    with autocast(CPU, "bfloat16"):
        assert function(x, weights, 2, 1e-6) is None
    x[1, 3, 2] = float("nan")
    out = function(x, weights, 2, 1e-6)
    assert out is not None and out[0].isfinite().all() and out[1].isnan().all()


@pytest.mark.parametrize(("compiler", "is_compiled"), [("no-such-compiler", False), ("cc", True)])
def test_a_block_can_be_compiled_where_there_are_no_gradients_but_not_without_a_compiler(
    compiler: str, is_compiled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block_or_skip("float32")
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    with torch.inference_mode():
        assert (compiled_block.__wrapped__("float32") is not None) == is_compiled
        assert (kernel.compiled_gelu.__wrapped__() is not None) == is_compiled


def test_blocks_that_drop_attention_weights_are_computed_by_modules_in_training_alone() -> None:
    calls: list[int] = []

    def function(x: Tensor, *_: object) -> Tensor:
        calls.append(len(x))
        return x

    block = make(32, 2, 48)
    block.attention.dropout = 0.5
    compile_with(block, function)
    block.train()(torch.randn(2, 5, 32))
    assert calls == []
    block.eval()(torch.randn(2, 5, 32))
    block(torch.randn(2, 5, 32), taps={}, name="block00")
    assert calls == [2]


def test_the_kernel_drops_the_numbers_that_the_modules_drop() -> None:
    """By itself too, where a block is computed by modules: of any shape and key."""
    kernels = block_or_skip("float32")
    keys = torch.tensor([[0, 0], [-1, 2**31 - 1], [-(2**31), 5]], dtype=torch.int32)
    for rate in (0.0, 0.1, 0.5, 0.999, 1 - 1e-12):
        for shape in ((3, 7, 33), (3, 1), (3, 70_000)):
            like = torch.empty(shape)
            assert torch.equal(kernels.keep_mask(keys, rate, like), keep_mask(keys, rate, like))


def test_which_library_multiplies_is_timed_once_and_the_first_answer_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block_or_skip("float32")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    cached_beside(kernel.SOURCES[torch.float32], "").parent.mkdir(parents=True)
    faster = kernel.onednn_is_faster.__wrapped__
    first = faster()
    (answer,) = tmp_path.rglob("*.products")
    assert answer.read_text() == ("onednn" if first else "pytorch")
    for text in ("onednn", "pytorch"):
        answer.write_text(text)
        assert faster() == (text == "onednn")


@pytest.mark.parametrize(
    "function",
    [
        "function(READ(in[i])",
        "logits[i] - most",
        "* slope(READ",
        "b * c +",
        "* factor * (READ",
        "* at.path, factor",
    ],
)
def test_a_kernel_that_computes_something_else_is_not_used(
    function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    block_or_skip("float32")
    folder = kernel.SOURCES[torch.float32].path.parent
    changed = 0
    for name in ("block.c", "attention.c", "gelu.c"):
        text = (folder / name).read_text()
        changed += name != "gelu.c" and text.count(function)
        factor = "* 1.1f " if function.startswith("*") else "1.1f * "
        (tmp_path / name).write_text(text if name == "gelu.c" else text.replace(function, factor + function))
    assert changed == 1
    source = kernel.SOURCES[torch.float32]
    other = replace(source, path=tmp_path / "block.c")
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.setitem(kernel.SOURCES, torch.float32, other)
    assert compiled_block.__wrapped__("float32") is None


def test_c_has_the_numbers_by_which_python_makes_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C with a number of its own would write beside the arrays, or leave a part of them as it was."""
    block_or_skip("float32")
    source, flags = kernel.SOURCES[torch.float32], " ".join(kernel.SOURCES[torch.float32].flags)
    for name, value in (("PADDING", 32), ("CHUNK", 4)):
        flags = flags.replace(old := f"-D{name}={getattr(kernel, name)}", new := f"-D{name}={value}")
        assert old != new and new in flags
        monkeypatch.setattr(kernel, name, value)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.setitem(kernel.SOURCES, torch.float32, replace(source, flags=tuple(flags.split())))
    kernels = compiled_block.__wrapped__("float32")
    assert kernels is not None
    weights = torch.full((1, 2, 7, 64), 7.0)  # more room than any padding takes
    out = torch.empty(1, 7, 64)
    qkv = torch.randn(1, 7, 192, generator=torch.Generator().manual_seed(0))
    assert kernels.call("attention", qkv, torch.zeros(192), None, out, weights, 1, 2, 7, 32, 1.0)
    padded = 7 * 2 * 32
    assert (weights.view(-1)[:padded] <= 1).all() and (weights.view(-1)[padded:] == 7).all()
    rows = torch.randn(9, 64, generator=torch.Generator().manual_seed(1))
    parts, sums = torch.full((9, 64), 7.0), torch.empty(64)
    kernels.call("bias_gelu_backward", rows, torch.zeros(64), 0, None, 9, rows, rows, sums, parts, 9, 64)
    assert (parts[:3] != 7).all() and (parts[3:] == 7).all()  # pieces of 4 rows
