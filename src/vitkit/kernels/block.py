"""The encoder block and GELU in few passes over memory, compiled where there is a compiler.

The tanh form of GELU is `gelu.c`. PyTorch's own takes three to four times as long on a processor, because of
its hyperbolic tangent. It is used where there is no compiler. Forward and backward of 1,576 x 1,536 take it
4.1 and 4.6 ms, and 1.3 and 1.5 ms here; separate passes took 4 to 10, a compiled graph 1.9 and 2.4 after 25 s
of compiling.

The block is matrix products, and between them the kernels of `block.c`. Forward and backward are written out
by hand, so that biases, residual sums, casts and the sums of gradients happen while the numbers are in the
cache for something else. Without a compiler models compute with modules, one operation after the other.

Shapes: B images, T tokens, D = width, H = mlp_dim, h = num_heads.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.compile import Source, load

TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

Gelu = Callable[[Tensor], Tensor]


@functools.cache
def compiled_gelu() -> Gelu | None:
    """Return GELU compiled for this processor; None where that is not possible."""
    library = load(GELU, compile_it=True).library
    return None if library is None else _CompiledGelu(library)


@dataclass(frozen=True, eq=False)
class _CompiledGelu:
    """The functions of `gelu.c`. A copy or a pickle becomes the GELU that the machine it is on compiles."""

    library: ctypes.CDLL

    def __call__(self, x: Tensor) -> Tensor:
        """Apply GELU in its tanh form to any shape, by PyTorch where the kernel lacks the device or type."""
        if x.device.type != "cpu" or x.dtype not in TYPES:
            return F.gelu(x, approximate="tanh")
        return _Gelu.apply(x, self.library)  # type: ignore[no-any-return, no-untyped-call]

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_gelu, ()


def _computes_gelu(library: ctypes.CDLL) -> bool:
    """Whether a few values and slopes agree with the formula."""
    exact = torch.linspace(-9, 9, 401, dtype=torch.double)
    inner = math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
    slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * exact**2)
    value = 0.5 * exact * (1 + inner.tanh())
    derivative = 0.5 * (1 + inner.tanh()) + 0.5 * exact * (1 - inner.tanh() ** 2) * slope
    # bfloat16 rounds x itself by up to 2^-9 of it, so by 0.018 here, and the result again.
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        x = exact.to(dtype)
        computed = _call(library, "gelu", x), _call(library, "gelu_backward", x, torch.ones_like(x))
        if any((a - b).abs().max() > tolerance for a, b in zip(computed, (value, derivative), strict=True)):
            return False
    return True


# The two flags about mathematics let it use vectors; none lets it change a result.
GELU = Source(
    Path(__file__).with_name("gelu.c"),
    ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fopenmp"),
    f"PyTorch {torch.__version__}",
    _computes_gelu,
)


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, library: ctypes.CDLL) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.library = library
        return _call(library, "gelu", x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return _call(ctx.library, "gelu_backward", x, grad.to(x.dtype).contiguous()), None


def _call(library: ctypes.CDLL, name: str, *inputs: Tensor) -> Tensor:
    """Call a function of the library on contiguous tensors of one shape and type."""
    out = torch.empty_like(inputs[0])
    call(library, f"{name}_{TYPES[out.dtype]}", *inputs, out, out.numel())
    return out


def call(library: ctypes.CDLL, name: str, *arguments: Tensor | int | float | None) -> Any:
    """Call a function of C with tensors, whole numbers and floats, and the number of threads."""
    converted: list[Any] = []
    for argument in arguments:
        if isinstance(argument, Tensor):
            converted.append(ctypes.c_void_p(argument.data_ptr()))
        elif isinstance(argument, float):
            converted.append(ctypes.c_float(argument))
        else:
            converted.append(None if argument is None else ctypes.c_long(argument))
    return getattr(library, name)(*converted, ctypes.c_int(torch.get_num_threads()))


PADDING = 16
"""Rows of attention weights are padded to a multiple of this, and a head's size is one. It is the float32
numbers of the longest vector, so that every vector is full."""
CHUNK = 64
"""Rows of a piece of work. Sums over all rows are made piece by piece, whatever the number of threads."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""The largest difference to the formulas, over the largest number: bfloat16 has 8 bits."""


@functools.cache
def compiled_block(precision: str) -> "Kernels | None":
    """Return the block compiled for this processor and products of "float32" or "bfloat16", by autocast.

    None where that is not possible.
    """
    number: torch.dtype = getattr(torch, precision)
    library = load(SOURCES[number], compile_it=True).library
    return None if library is None else Kernels(library, number)


@torch.inference_mode(False)  # a caller may be inside of it, where there are no gradients to compare
def _computes_block(number: torch.dtype, library: ctypes.CDLL) -> bool:
    """Whether a small block gives the values and gradients of PyTorch's own functions in float64."""
    kernels = Kernels(library, number)
    # An odd number of tokens, because bfloat16 takes them in pairs, and more than a tile has rows (6).
    tokens, heads, width, hidden = 7, 2, 32, 20
    generator = torch.Generator().manual_seed(0)
    shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    shapes += [(width,), (width,), (hidden, width), (hidden,), (width, hidden), (width,)]
    all_shapes = ((2, tokens, width), *shapes)
    inputs = [torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for shape in all_shapes]
    grad = torch.randn(2, tokens, width, generator=generator)
    with torch.enable_grad(), torch.autocast("cpu", enabled=False):
        ours = [tensor.clone().requires_grad_() for tensor in inputs]
        plain = [tensor.double().requires_grad_() for tensor in inputs]
        value = _apply(kernels, ours[0], ours[1:], heads, 1e-6)
        exact = _plain_block(plain[0], plain[1:], heads, 1e-6)
        # The gradient of a sum: given an output's gradient, PyTorch imports sympy, which takes half a second.
        computed = [value, *torch.autograd.grad((value * grad).sum(), ours)]
        expected = [exact, *torch.autograd.grad((exact * grad.double()).sum(), plain)]
    tolerance = TOLERANCES[number]
    pairs = zip(computed, expected, strict=True)
    return all((a - b).abs().max() <= tolerance * b.abs().max() for a, b in pairs)


def _apply(kernels: "Kernels", x: Tensor, weights: Sequence[Tensor], num_heads: int, eps: float) -> Tensor:
    """Compute a block, with a gradient: the one call of PyTorch's, which declares no types."""
    out: Tensor = _Block.apply(x, kernels, num_heads, eps, *weights)  # type: ignore[no-untyped-call]
    return out


def _plain_block(x: Tensor, weights: Sequence[Tensor], heads: int, eps: float) -> Tensor:
    """Compute a block with PyTorch's functions."""
    scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, fc1_w, fc1_b, fc2_w, fc2_b = weights
    width = x.shape[-1]
    qkv = F.linear(F.layer_norm(x, (width,), scale1, shift1, eps), qkv_w, qkv_b)
    q, k, v = qkv.view(*x.shape[:2], 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = ((q @ k.mT / math.sqrt(width // heads)).softmax(-1) @ v).transpose(1, 2).flatten(2)
    x = x + F.linear(mixed, out_w, out_b)
    hidden = F.linear(F.layer_norm(x, (width,), scale2, shift2, eps), fc1_w, fc1_b)
    return x + F.linear(F.gelu(hidden, approximate="tanh"), fc2_w, fc2_b)


@dataclass(eq=False)
class Kernels:
    """The functions of `block.c` on tensors: `number` is the type of products, all others are float32.

    Called, they compute a block. A copy or a pickle becomes the block that the machine it is on compiles.
    """

    library: ctypes.CDLL
    number: torch.dtype

    def __call__(self, x: Tensor, weights: tuple[Tensor, ...], num_heads: int, eps: float) -> Tensor | None:
        """Compute a block, `(B, T, D) -> (B, T, D)`, with a gradient.

        Args:
            x: tokens.
            weights: scale before shift and weight before bias of norm1, qkv, out, norm2, fc1 and fc2.
            num_heads: h.
            eps: epsilon of both norms.

        Returns:
            None where the tensors are of another kind than it was compiled for, in type, size of a head,
            device or autocast.
        """
        cast = torch.is_autocast_enabled("cpu")
        products = torch.get_autocast_dtype("cpu") if cast else x.dtype
        fits = x.shape[-1] % (num_heads * PADDING) == 0 and x.ndim == 3
        types = {x.dtype, *(weight.dtype for weight in weights)}
        if products != self.number or x.device.type != "cpu" or types != {torch.float32} or not fits:
            return None
        return _apply(self, x, weights, num_heads, eps)

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_block, (str(self.number).removeprefix("torch."),)

    def call(self, name: str, *arguments: Tensor | int | float | None) -> Any:
        """Call a function with tensors, whole numbers and floats."""
        return call(self.library, name, *arguments)

    def norm(
        self, x: Tensor, branch: Tensor | None, bias: Tensor | None, scale: Tensor, shift: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the sum of x, branch and bias, its layer norm, and mean and inverse deviation of each row."""
        rows, width = x.shape
        total = x if branch is None else torch.empty_like(x)
        normed, statistics = torch.empty(rows, width, dtype=self.number), torch.empty(rows, 2)
        self.call("norm", x, branch, bias, scale, shift, eps, total, normed, statistics, rows, width)
        return total, normed, statistics

    def add(self, x: Tensor, branch: Tensor, bias: Tensor) -> Tensor:
        """Give the sum of x, branch and bias."""
        total = torch.empty_like(x)
        self.call("add", x, branch, bias, total, *x.shape)
        return total

    def split(self, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Give a gradient in the type of products, and the sums of its columns."""
        rows, width = grad.shape
        copy = torch.empty(rows, width, dtype=self.number)
        sums, parts = torch.empty(3, width), _parts(rows, 3 * width)
        no_norm = [None] * 4
        self.call("norm_backward", *no_norm, grad, None, copy, sums, parts, rows, width)
        return copy, sums[2]

    def norm_backward(
        self, dy: Tensor, x: Tensor, statistics: Tensor, scale: Tensor, grad: Tensor, copied: bool
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Compute the gradient of x: `grad` plus the gradient through the norm.

        Returns:
            The gradient; its copy in the type of products, if `copied`; and, `(3, D)`, the gradients of scale
            and shift, and the sums of the gradient's columns.
        """
        rows, width = x.shape
        total, sums, parts = torch.empty_like(x), torch.empty(3, width), _parts(rows, 3 * width)
        copy = torch.empty(rows, width, dtype=self.number) if copied else None
        self.call("norm_backward", dy, x, statistics, scale, grad, total, copy, sums, parts, rows, width)
        return total, copy, sums

    def bias_gelu(self, x: Tensor, bias: Tensor) -> Tensor:
        """Give GELU of x + bias."""
        out = torch.empty_like(x)
        self.call("bias_gelu", x, bias, out, *x.shape)
        return out

    def bias_gelu_backward(self, x: Tensor, bias: Tensor, grad: Tensor) -> Tensor:
        """Turn `grad`, in place, into the gradient of x; returns the gradient of bias."""
        sums, parts = torch.empty_like(bias), _parts(*x.shape)
        self.call("bias_gelu_backward", x, bias, grad, grad, sums, parts, *x.shape)
        return sums

    def attention(self, qkv: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """Give the values that attention mixes, `(B, T, D)` from `(B, T, 3D)`, and its weights, padded."""
        images, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        mixed = torch.empty(images, tokens, width, dtype=self.number)
        padded = -(-tokens // PADDING) * PADDING
        weights = torch.empty(images, heads, tokens, padded, dtype=self.number)
        size = width // heads
        sizes = images, heads, tokens, size, 1 / math.sqrt(size)
        _require_memory(self.call("attention", qkv, bias, mixed, weights, *sizes))
        return mixed, weights

    def attention_backward(
        self, grad: Tensor, qkv: Tensor, bias: Tensor, weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Give the gradients of qkv and of its bias."""
        images, heads, tokens, _ = weights.shape
        size = qkv.shape[2] // 3 // heads
        out, sums = torch.empty_like(qkv), torch.empty(images, qkv.shape[2])
        sizes = images, heads, tokens, size, 1 / math.sqrt(size)
        _require_memory(self.call("attention_backward", grad, qkv, bias, weights, out, sums, *sizes))
        return out, sums.sum(0)


class Outline(Kernels):
    """The same functions without C: they take and free the same memory, which `models/measure.py` counts."""

    def __init__(self, precision: str) -> None:
        self.number = getattr(torch, precision)

    def call(self, name: str, *arguments: Tensor | int | float | None) -> Any:
        return 1


def _parts(rows: int, columns: int) -> Tensor:
    """Make room for the sums of all pieces of work."""
    return torch.empty(-(-rows // CHUNK), columns)


def _require_memory(done: int) -> None:
    if not done:
        raise MemoryError("not enough memory: attention needs room for an image's attention weights")


class _Block(torch.autograd.Function):
    """The block and its gradient, as in paper eq. 2 and 3 and `models/parts.py`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, k: Kernels, heads: int, eps: float, *weights: Tensor) -> Tensor:
        scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, fc1_w, fc1_b, fc2_w, fc2_b = weights
        images, tokens, width = x.shape
        # (B * T, D): products of two dimensions are the fastest. The kernels read rows one after the other.
        tokens_in = x.reshape(-1, width).contiguous()
        # Cast once: the backward pass multiplies by the same matrices.
        matrices = [matrix.to(k.number) for matrix in (qkv_w, out_w, fc1_w, fc2_w)]
        qkv_m, out_m, fc1_m, fc2_m = matrices
        # Every product leaves its bias to the kernel that reads it next.
        _, normed1, statistics1 = k.norm(tokens_in, None, None, scale1, shift1, eps)
        qkv = torch.mm(normed1, qkv_m.t()).view(images, tokens, 3 * width)
        mixed, attended = k.attention(qkv, qkv_b, heads)
        mixed = mixed.view(-1, width)
        # The residual sum of eq. 2 is made by the norm of eq. 3, which reads it.
        middle, normed2, statistics2 = k.norm(
            tokens_in, torch.mm(mixed, out_m.t()), out_b, scale2, shift2, eps
        )
        hidden = torch.mm(normed2, fc1_m.t())
        active = k.bias_gelu(hidden, fc1_b)
        out = k.add(middle, torch.mm(active, fc2_m.t()), fc2_b)
        ctx.kernels = k
        # The inputs of every product, norm and GELU, in the order in which `backward` unpacks them. The
        # gradients of shifts and of the other biases are sums of gradients alone.
        ctx.save_for_backward(
            tokens_in, normed1, statistics1, qkv, attended, mixed, middle, normed2, statistics2, hidden,
            active, *matrices, scale1, qkv_b, scale2, fc1_b,
        )  # fmt: skip
        return out.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            x, normed1, statistics1, qkv, attended, mixed, middle, normed2, statistics2, hidden, active,
            qkv_m, out_m, fc1_m, fc2_m, scale1, qkv_b, scale2, fc1_b,
        ) = ctx.saved_tensors  # fmt: skip
        k: Kernels = ctx.kernels
        shape, width = grad.shape, grad.shape[-1]
        grad = grad.reshape(-1, width).contiguous()

        # The MLP, from its output to its input. The gradient of a bias is the sum over all tokens.
        dout, fc2_b_grad = k.split(grad)
        dhidden = torch.mm(dout, fc2_m)
        fc2_w_grad = torch.mm(dout.t(), active)
        fc1_b_grad = k.bias_gelu_backward(hidden, fc1_b, dhidden)  # dhidden is now of GELU's input
        fc1_w_grad = torch.mm(dhidden.t(), normed2)
        dnormed = torch.mm(dhidden, fc1_m)
        # `grad` has come past the branch, by the residual sum; what came through it is added by the norm.
        grad, dmiddle, sums2 = k.norm_backward(dnormed, middle, statistics2, scale2, grad, copied=True)
        assert dmiddle is not None
        # Attention, in the same way.
        out_w_grad = torch.mm(dmiddle.t(), mixed)
        dqkv, qkv_b_grad = k.attention_backward(torch.mm(dmiddle, out_m), qkv, qkv_b, attended)
        dqkv = dqkv.view(-1, 3 * width)
        qkv_w_grad = torch.mm(dqkv.t(), normed1)
        dnormed = torch.mm(dqkv, qkv_m)
        grad, _, sums1 = k.norm_backward(dnormed, x, statistics1, scale1, grad, copied=False)
        # In the order of `forward`'s arguments. `sums` hold the gradients of scale and shift, and of the bias
        # that was added before the norm.
        return (
            grad.view(shape), None, None, None,
            sums1[0], sums1[1], qkv_w_grad.float(), qkv_b_grad, out_w_grad.float(), sums2[2],
            sums2[0], sums2[1], fc1_w_grad.float(), fc1_b_grad, fc2_w_grad.float(), fc2_b_grad,
        )  # fmt: skip


FLAGS = (
    *(flag for flag in GELU.flags if flag != "-ffp-contract=off"),
    # Products and sums are fused: the compiler decides which, and a library is compiled once for a machine.
    "-ffp-contract=fast",
    # Python makes room by these numbers and C fills it, so C has no numbers of its own.
    *(f"-DPADDING={PADDING}", f"-DCHUNK={CHUNK}"),
)
SOURCES = {
    number: Source(
        Path(__file__).with_name("block.c"),
        (*FLAGS, *flags),
        GELU.original,
        functools.partial(_computes_block, number),
        features,
    )
    for number, flags, features in (
        (torch.float32, (), frozenset()),
        (torch.bfloat16, ("-DBFLOAT16",), frozenset({"avx512_bf16"})),
    )
}
