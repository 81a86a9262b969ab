"""The compiled GELU against PyTorch's, value by value."""

import hashlib
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels import block as kernel
from vitkit.kernels.block import FORMS, Kernels, compiled_block, compiled_gelu, plain_gelu

Gelu = Callable[[Tensor], Tensor]
TYPES = (torch.float32, torch.bfloat16)
GOLD = ["b8978870fcac22fc", "9bde459c26330077"]
"""SHA-256 of the values and slopes that the kernel gave before its ends were right: the same for every
instruction set from the first of x86-64 on, optimised or not, because its operations are named."""


@pytest.fixture
def gelu() -> Gelu:
    function = compiled_gelu()
    if function is None:
        assert shutil.which("cc") is None, "there is a compiler, but it does not compile the kernel"
        pytest.skip("no C compiler")
    return lambda x: function(x, "tanh")


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def values_and_gradients(function: Gelu, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    out = function(x)
    out.backward(grad)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    return out.detach(), x.grad


def plain(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


@pytest.mark.usefixtures("gelu")
def test_every_form_is_within_the_rounding_of_its_type(form: str) -> None:
    """All numbers of bfloat16 and many of float32 are compared with the exact values, computed in float64."""
    function = compiled_gelu()
    assert function is not None
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.bfloat16)
    for x, unit, least in (
        (halves[halves.isfinite() & (halves.abs() < 1e4)], 2**-8 * 1.01, 1e-6),
        (torch.linspace(-30, 30, 100_003), 2**-22, 4e-6),
    ):
        grad = torch.ones_like(x)
        exact = values_and_gradients(lambda x: plain_gelu(x, form), x.double(), grad.double())
        own = values_and_gradients(lambda x: function(x, form), x, grad)
        for value, reference in zip(own, exact, strict=True):
            assert ((value.double() - reference).abs() <= unit * reference.abs() + least).all()


def test_float32_is_as_near_to_the_exact_values_as_pytorch_s(gelu: Gelu) -> None:
    x = torch.linspace(-12, 12, 100_003)
    grad = torch.linspace(1, 2, 100_003)
    exact = values_and_gradients(plain, x.double(), grad.double())
    ours, theirs = values_and_gradients(gelu, x, grad), values_and_gradients(plain, x, grad)
    for own, other, reference in zip(ours, theirs, exact, strict=True):
        error, their_error = (own - reference).abs().max(), (other - reference).abs().max()
        assert error <= 2 * their_error + 1e-7


@pytest.mark.parametrize("dtype", TYPES)
def test_any_shape_and_stride_and_number_of_threads(gelu: Gelu, dtype: torch.dtype) -> None:
    """The number of threads changes no bit; nor does the place of a number in its vector."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 70_001, generator=generator).to(dtype)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for view in (x, x.t(), x[:, 1:], x[0, :7], x[:, :0], x[0, 0]):
        torch.testing.assert_close(gelu(view), plain(view), rtol=tolerance, atol=1e-6)
    whole = gelu(x)
    assert torch.equal(gelu(x[:, 1:]), whole[:, 1:])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(gelu(x), whole)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", TYPES)
def test_gradients_of_any_stride_are_those_of_contiguous_ones(gelu: Gelu, dtype: torch.dtype) -> None:
    """`sum().backward()` hands over one number, expanded: whoever reads it as an array reads beyond it."""
    x = torch.linspace(-4, 4, 12_000).to(dtype).view(40, 300)
    numbers = torch.randn(300, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    other = numbers.t().contiguous()
    for strided, grad in (
        (torch.ones((), dtype=dtype).expand(40, 300), torch.ones(40, 300, dtype=dtype)),
        (numbers.t(), other),
        (other[:, ::2].repeat_interleave(2, -1)[:, ::2], other[:, ::2].contiguous()),
        (torch.cat([other, other], -1)[:, 1:301], torch.cat([other[:, 1:], other[:, :1]], -1)),
    ):
        values = x[:, : grad.shape[1]]
        expected = values_and_gradients(gelu, values.contiguous(), grad)
        for tensor, reference in zip(values_and_gradients(gelu, values, strided), expected, strict=True):
            assert torch.equal(tensor, reference)
    summed = x.clone().requires_grad_()
    gelu(summed).sum().backward()  # type: ignore[no-untyped-call]
    assert summed.grad is not None
    assert torch.equal(summed.grad, values_and_gradients(gelu, x, torch.ones_like(x))[1])


def to_the_ends(dtype: torch.dtype) -> Tensor:
    """Numbers of both signs, from 20 to the largest of a type, and infinity below."""
    sizes = torch.logspace(math.log10(20), 38.5, 2001, dtype=torch.double).clamp(max=torch.finfo(dtype).max)
    return torch.cat([-sizes, torch.tensor([-math.inf]), sizes]).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_at_the_ends_of_its_range_it_is_nothing_or_its_argument(gelu: Gelu, dtype: torch.dtype) -> None:
    x = to_the_ends(dtype)
    kernels = compiled_block(str(dtype).removeprefix("torch."))  # no bfloat16 on every processor
    functions = [gelu]
    if kernels is not None:
        functions.append(lambda x: ThroughTheBlock.apply(x, kernels))  # type: ignore[no-untyped-call]
    for function in functions:
        value, slope = values_and_gradients(function, x, torch.ones_like(x))
        assert ((value - x.clamp(min=0)).abs() <= 2**-24).all()
        assert ((slope - (x > 0).to(dtype)).abs() <= 2**-24).all()
        far = x < -1e32
        assert (value[far] == 0).all() and (slope[far] == 0).all()


class ThroughTheBlock(torch.autograd.Function):
    """GELU as a compiled block computes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernels: Kernels) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kernels = kernels
        return kernels.bias_gelu(x.view(-1, 1), torch.zeros(1)).view(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        out = grad.clone().view(-1, 1)
        ctx.kernels.bias_gelu_backward(x.view(-1, 1), torch.zeros(1), out)
        return out.view(-1), None


def test_runs_that_were_begun_before_keep_their_bits(gelu: Gelu) -> None:
    """A run's folder names this kernel: wherever it was right before, it gives the same bits."""
    x = torch.arange(-(2**31), 2**31, 2**12).to(torch.int32).view(torch.float32)
    x = x[x.abs() <= 2.0**34]
    tensors = values_and_gradients(gelu, x, torch.ones_like(x))
    digests = [hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16] for numbers in tensors]
    assert digests == GOLD


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_that_are_none_stay_so(gelu: Gelu, dtype: torch.dtype) -> None:
    x = torch.tensor([float("nan"), float("inf"), -0.0, 0.0, 1e30, -1e30] * 20).to(dtype)
    y = gelu(x)
    assert y[0].isnan() and y[1] == float("inf") and y[4] == x[4]
    assert y[2] == y[3] == 0 and y[5].abs() < 1e-6
    nans = torch.arange(0x7F81, 0x8000, dtype=torch.int16).view(torch.bfloat16)
    assert gelu(nans).isnan().all() and gelu(-nans).isnan().all()
    double = torch.linspace(-3, 3, 50, dtype=torch.double, requires_grad=True)  # other types are PyTorch's
    assert torch.equal(gelu(double), plain(double)) and torch.autograd.gradcheck(gelu, double)


@pytest.mark.usefixtures("gelu")
@pytest.mark.parametrize(
    "function", ["function(x[i])", "function(widen(x[i]))", "grad[i] *", "widen(grad[i]) *", "x * normal("]
)
def test_a_kernel_that_computes_something_else_is_not_used(
    function: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = kernel.GELU.path.read_text()
    assert text.count(function) == 1
    path = tmp_path / "gelu.c"
    path.write_text(text.replace(function, "1.1f * " + function))
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel, "GELU", replace(kernel.GELU, path=path))
    assert kernel.compiled_gelu.__wrapped__() is None
