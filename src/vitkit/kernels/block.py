"""The encoder block and GELU in few passes over memory, compiled where there is a compiler.

The forms of GELU are in `gelu.c`. PyTorch's own tanh form takes three to four times as long on a processor,
because of its hyperbolic tangent. It is used where there is no compiler. Forward and backward of
1,576 x 1,536 take it 4.1 and 4.6 ms, and 1.3 and 1.5 ms here; separate passes took 4 to 10, a compiled graph
1.9 and 2.4 after 25 s of compiling.

The block is matrix products, and between them the kernels of `block.c`. Forward and backward are written out
by hand, so that biases, residual sums, layer scales, what is dropped at random, rotary positions, casts and
the sums of gradients happen while the numbers are in the cache for something else. Without a compiler models
compute with modules, one operation after the other.

Shapes: B images, T tokens, D = width, H = mlp_dim, h = num_heads.
"""

import ctypes
import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitkit.kernels.compile import Source, cached_beside, load

TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

FORMS = ("tanh", "erf", "quick")
"""The forms of GELU, in the order of `gelu.c`."""
Gelu = Callable[[Tensor, str], Tensor]
"""Computes GELU of any shape in one of the forms."""


@functools.cache
def compiled_gelu(compile_it: bool = True) -> Gelu | None:
    """Return GELU compiled for this processor; None where that is not possible, or was not done before."""
    library = load(GELU, compile_it=compile_it).library
    return None if library is None else _CompiledGelu(library)


@dataclass(frozen=True, eq=False)
class _CompiledGelu:
    """The functions of `gelu.c`. A copy or a pickle becomes the GELU that the machine it is on compiles."""

    library: ctypes.CDLL

    def __call__(self, x: Tensor, form: str = "tanh") -> Tensor:
        """Apply a form of GELU to any shape, by PyTorch where the kernel lacks the device or type."""
        if x.device.type != "cpu" or x.dtype not in TYPES:
            return plain_gelu(x, form)
        return _Gelu.apply(x, self.library, FORMS.index(form))  # type: ignore[no-any-return, no-untyped-call]

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_gelu, ()


def plain_gelu(x: Tensor, form: str) -> Tensor:
    """Apply a form of GELU with PyTorch's functions."""
    if form == "quick":
        return x * torch.sigmoid(1.702 * x)
    return F.gelu(x, approximate="tanh" if form == "tanh" else "none")


@torch.inference_mode(False)  # a caller may be inside of it, where there are no gradients to compare
def _computes_gelu(library: ctypes.CDLL) -> bool:
    """Whether a few values and slopes of each form agree with PyTorch's in float64."""
    exact = torch.linspace(-9, 9, 401, dtype=torch.double).requires_grad_()
    for number, form in enumerate(FORMS):
        with torch.enable_grad():
            value = plain_gelu(exact, form)
            (slope,) = torch.autograd.grad(value.sum(), exact)
        # bfloat16 rounds x itself by up to 2^-9 of it, so by 0.018 here, and the result again.
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
            x = exact.detach().to(dtype)
            own = (
                _call(library, "gelu", number, x),
                _call(library, "gelu_backward", number, x, torch.ones_like(x)),
            )
            if any((a - b).abs().max() > tolerance for a, b in zip(own, (value, slope), strict=True)):
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
    def forward(ctx: Any, x: Tensor, library: ctypes.CDLL, form: int) -> Tensor:
        x = x.contiguous()
        ctx.save_for_backward(x)
        ctx.library, ctx.form = library, form
        return _call(library, "gelu", form, x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return _call(ctx.library, "gelu_backward", ctx.form, x, grad.to(x.dtype).contiguous()), None, None


def _call(library: ctypes.CDLL, name: str, form: int, *inputs: Tensor) -> Tensor:
    """Call a function of the library on contiguous tensors of one shape and type."""
    out = torch.empty_like(inputs[0])
    call(library, f"{name}_{TYPES[out.dtype]}", *inputs, out, out.numel(), form)
    return out


@dataclass(frozen=True)
class Drop:
    """Dropout: the keys of each image, `(B, 2)` int32, and the rate at which numbers are dropped."""

    keys: Tensor
    rate: float

    def structure(self) -> "ctypes.Structure":
        """Return the same for C."""
        return _Drop(self.keys.data_ptr(), min(round(self.rate * 2**32), 2**32 - 1), 1 / (1 - self.rate))


@dataclass(frozen=True)
class Branch:
    """A branch of the residual stream: it changes a product, which is then added."""

    bias: Tensor
    """`(D,)`."""
    gain: Tensor | None
    """Layer scale, `(D,)`."""
    path: Tensor | None
    """Stochastic depth, a factor for each image, `(B,)`."""
    drop: Drop | None
    tokens: int

    def structure(self) -> "ctypes.Structure":
        """Return the same for C."""
        addresses = (None if each is None else each.data_ptr() for each in (self.bias, self.gain, self.path))
        return _Branch(*addresses, _Drop() if self.drop is None else self.drop.structure(), self.tokens)


@dataclass(frozen=True)
class Extras:
    """The additions of a block to the matrix products, norms and attention of every block."""

    form: str = "tanh"
    """The form of GELU."""
    paths: tuple[Tensor | None, Tensor | None] = (None, None)
    """Stochastic depth of attention and MLP: a factor for each image, `(B,)`."""
    drops: tuple[Drop | None, Drop | None, Drop | None] = (None, None, None)
    """Dropout of the attention's output, of the hidden units, and of the MLP's output."""
    rotary: "Rotary | None" = None


@dataclass(frozen=True)
class Rotary:
    """The angles by which queries and keys are turned at each token, `(T, d)`."""

    cos: Tensor
    sin: Tensor
    neighbours: bool
    """Whether the pairs are neighbours, or the halves of a head."""

    def structure(self) -> "ctypes.Structure":
        """Return the same for C."""
        return _Rotary(self.cos.data_ptr(), self.sin.data_ptr(), self.neighbours)


class _Drop(ctypes.Structure):
    _fields_ = [("keys", ctypes.c_void_p), ("threshold", ctypes.c_uint32), ("factor", ctypes.c_float)]


class _Branch(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("bias", "gain", "path")),
        ("drop", _Drop),
        ("tokens", ctypes.c_long),
    ]


class _Rotary(ctypes.Structure):
    _fields_ = [("cos", ctypes.c_void_p), ("sin", ctypes.c_void_p), ("neighbours", ctypes.c_long)]


Argument = Tensor | Drop | Branch | Rotary | int | float | None


def call(library: ctypes.CDLL, name: str, *arguments: Argument) -> Any:
    """Call a function of C with tensors, structures, whole numbers and floats, and the number of threads."""
    function = getattr(library, name)
    if function.argtypes is None:  # declared, numbers and addresses are converted in half the time
        numbers: dict[type, Any] = {int: ctypes.c_long, float: ctypes.c_float}
        kinds = (numbers.get(type(argument), ctypes.c_void_p) for argument in arguments)
        function.argtypes = [*kinds, ctypes.c_int]
    values = [
        argument.data_ptr()
        if isinstance(argument, Tensor)
        else argument
        if argument is None or isinstance(argument, int | float)
        else ctypes.byref(argument.structure())
        for argument in arguments
    ]
    return function(*values, torch.get_num_threads())


PADDING = 16
"""Rows of attention weights are padded to a multiple of this, and a head's size is one. It is the float32
numbers of the longest vector, so that every vector is full."""
CHUNK = 64
"""Rows of a piece of work. Sums over all rows are made piece by piece, whatever the number of threads."""
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""The largest difference to the formulas, over the largest number: bfloat16 has 8 bits."""


@functools.cache
def compiled_block(precision: str, compile_it: bool = True, onednn: bool = False) -> "Kernels | None":
    """Return the block compiled for this processor and products of "float32" or "bfloat16", by autocast.

    None where that is not possible, or was not done before. oneDNN multiplies where it is there.
    """
    number: torch.dtype = getattr(torch, precision)
    library = load(SOURCES[number], compile_it=compile_it).library
    return None if library is None else Kernels(library, number, onednn and has_onednn())


def has_onednn() -> bool:
    """Whether this PyTorch can have oneDNN multiply in float32, by an operator that it keeps for itself."""
    is_there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_there and hasattr(torch.ops.mkldnn, "_linear_pointwise")


GAIN = 1.03
"""oneDNN is taken where it is so many times as fast, or more."""


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies matrices of float32 faster on this machine than the library of `torch.mm`.

    They are timed once, in turns, which takes a fifth of a second; the answer is kept beside the compiled
    block, so that all runs of a machine compute in one way.
    """
    plain = compiled_block("float32")
    if plain is None or not has_onednn():
        return False
    answer = cached_beside(SOURCES[torch.float32], ".products")
    with suppress(OSError):
        return answer.read_text() == "onednn"
    other = Kernels(plain.library, plain.number, onednn=True)
    times: dict[bool, list[float]] = {True: [], False: []}
    with torch.inference_mode():
        pairs = [(torch.ones(394, n), torch.ones(m, n)) for n, m in ((384, 1536), (1536, 384))]
        for _ in range(8):
            for kernels in (plain, other):
                began = time.perf_counter()
                for rows, matrix in pairs:
                    kernels.product(rows, matrix)
                times[kernels.onednn].append(time.perf_counter() - began)
    faster = min(times[False]) > GAIN * min(times[True])
    new = answer.with_suffix(f".{os.getpid()}.products")
    with suppress(OSError):  # where nothing can be written, each process answers for itself
        new.write_text("onednn" if faster else "pytorch")
        with suppress(FileExistsError):  # of processes that time at once the first one answers for all
            os.link(new, answer)
        new.unlink()
        return answer.read_text() == "onednn"
    return faster


@torch.inference_mode(False)  # as above
def _computes_block(number: torch.dtype, library: ctypes.CDLL) -> bool:
    """Whether a small block gives the values and gradients of PyTorch's own functions in float64."""
    kernels = Kernels(library, number)
    # An odd number of tokens, because bfloat16 takes them in pairs, and more than a tile has rows (6).
    tokens, heads, width, hidden = 7, 2, 32, 20
    generator = torch.Generator().manual_seed(0)
    shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    shapes += [(width,), (width,), (hidden, width), (hidden,), (width, hidden), (width,)]
    inputs = [
        torch.randn(shape, generator=generator) / shape[-1] ** 0.5
        for shape in ((2, tokens, width), *shapes, (width,), (width,))
    ]
    grad = torch.randn(2, tokens, width, generator=generator)
    keys = torch.randint(2**31, (2, 2), generator=generator, dtype=torch.int32)
    angles = torch.rand(tokens, width // heads // 2, generator=generator)
    for form in FORMS:
        # One form alone, and two with everything else that there is.
        has_extras, neighbours = form != "tanh", form == "erf"
        turned = angles.repeat_interleave(2, -1) if neighbours else angles.repeat(1, 2)
        extras = Extras(form)
        if has_extras:
            rotary, drop = Rotary(turned.cos(), turned.sin(), neighbours), Drop(keys, 0.3)
            extras = Extras(form, (torch.tensor([0.0, 2.0]), torch.tensor([2.0, 0.0])), (drop,) * 3, rotary)
        count = len(inputs) if has_extras else len(inputs) - 2
        with torch.enable_grad(), torch.autocast("cpu", enabled=False):
            ours = [tensor.clone().requires_grad_() for tensor in inputs[:count]]
            plain = [tensor.double().requires_grad_() for tensor in inputs[:count]]
            value = _apply(kernels, ours[0], ours[1:], heads, 1e-6, extras)
            exact = _plain_block(kernels, plain[0], plain[1:], heads, 1e-6, extras)
            # The gradient of a sum: given an output's gradient, PyTorch imports sympy, which takes half a
            # second.
            computed = [value, *torch.autograd.grad((value * grad).sum(), ours)]
            expected = [exact, *torch.autograd.grad((exact * grad.double()).sum(), plain)]
        pairs = zip(computed, expected, strict=True)
        if not all((a - b).abs().max() <= TOLERANCES[number] * b.abs().max() for a, b in pairs):
            return False
    return True


def _apply(
    kernels: "Kernels", x: Tensor, weights: Sequence[Tensor], num_heads: int, eps: float, extras: Extras
) -> Tensor:
    """Compute a block, with a gradient: the one call of PyTorch's, which declares no types."""
    out: Tensor = _Block.apply(x, kernels, num_heads, eps, extras, *weights)  # type: ignore[no-untyped-call]
    return out


def _plain_block(
    kernels: "Kernels", x: Tensor, weights: Sequence[Tensor], heads: int, eps: float, extras: Extras
) -> Tensor:
    """Compute a block with PyTorch's functions."""
    scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, fc1_w, fc1_b, fc2_w, fc2_b, *gains = weights
    width, size = x.shape[-1], x.shape[-1] // heads

    def drop(x: Tensor, drop: Drop | None) -> Tensor:
        if drop is None:
            return x
        return x / (1 - drop.rate) * kernels.keep_mask(drop.keys, drop.rate, x)

    def branch(x: Tensor, number: int) -> Tensor:
        x = drop(x, extras.drops[2 * number]) * (gains[number] if gains else 1)
        path = extras.paths[number]
        return x if path is None else x * path[:, None, None]

    def turn(x: Tensor) -> Tensor:
        if (rotary := extras.rotary) is None:
            return x
        axis = -1 if rotary.neighbours else -2
        a, b = x.view(*x.shape[:-1], *((-1, 2) if rotary.neighbours else (2, -1))).unbind(axis)
        turned = torch.stack([-b, a], axis).flatten(-2)
        return x * rotary.cos + turned * rotary.sin

    qkv = F.linear(F.layer_norm(x, (width,), scale1, shift1, eps), qkv_w, qkv_b)
    q, k, v = qkv.view(*x.shape[:2], 3, heads, size).permute(2, 0, 3, 1, 4)
    mixed = ((turn(q) @ turn(k).mT / math.sqrt(size)).softmax(-1) @ v).transpose(1, 2).flatten(2)
    x = x + branch(F.linear(mixed, out_w, out_b), 0)
    hidden = F.linear(F.layer_norm(x, (width,), scale2, shift2, eps), fc1_w, fc1_b)
    return x + branch(F.linear(drop(plain_gelu(hidden, extras.form), extras.drops[1]), fc2_w, fc2_b), 1)


@dataclass(eq=False)
class Kernels:
    """The functions of `block.c` on tensors: `number` is the type of products, all others are float32.

    Called, they compute a block. A copy or a pickle becomes the block that the machine it is on compiles.
    """

    library: ctypes.CDLL
    number: torch.dtype
    onednn: bool = False
    """Whether oneDNN multiplies, in float32."""

    def __call__(
        self,
        x: Tensor,
        weights: tuple[Tensor, ...],
        num_heads: int,
        eps: float,
        extras: Callable[[], Mapping[str, Any]] = dict,
    ) -> Tensor | None:
        """Compute a block, `(B, T, D) -> (B, T, D)`, with a gradient.

        Args:
            x: tokens.
            weights: scale before shift and weight before bias of norm1, qkv, out, norm2, fc1 and fc2; then
                the layer scales of both branches, if there are some.
            num_heads: h.
            eps: epsilon of both norms.
            extras: makes the fields of `Extras`, drawing what is dropped; a dropout as (keys, rate), rotary
                positions as (cos, sin, neighbours).

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
        made = dict(extras())
        if (drops := made.get("drops")) is not None:
            made["drops"] = tuple(None if drop is None else Drop(*drop) for drop in drops)
        if (rotary := made.get("rotary")) is not None:
            made["rotary"] = Rotary(*rotary)
        return _apply(self, x, weights, num_heads, eps, Extras(**made))

    def __reduce__(self) -> tuple[Any, ...]:
        return compiled_block, (str(self.number).removeprefix("torch."), True, self.onednn)

    def product(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Multiply rows by the transpose of a matrix."""
        if not self.onednn:
            return torch.mm(x, matrix.t())
        return torch.ops.mkldnn._linear_pointwise(x, matrix, None, "none", [], "")  # type: ignore[no-any-return]

    def call(self, name: str, *arguments: Argument) -> Any:
        """Call a function with tensors, structures, whole numbers and floats."""
        return call(self.library, name, *arguments)

    def keep_mask(self, keys: Tensor, rate: float, like: Tensor) -> Tensor:
        """Say which numbers of a tensor of images dropout keeps, as bool; see `models/parts.py`."""
        out = torch.empty(like.shape, dtype=torch.bool)
        self.call("dropout_kept", Drop(keys, rate), out, len(out), out.numel() // len(out))
        return out

    def norm(
        self,
        x: Tensor,
        product: Tensor | None,
        branch: Branch | None,
        scale: Tensor,
        shift: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the sum of x and a branch, its layer norm, and mean and inverse deviation of each row."""
        rows, width = x.shape
        total = x if branch is None else torch.empty_like(x)
        normed, statistics = torch.empty(rows, width, dtype=self.number), torch.empty(rows, 2)
        self.call("norm", x, product, branch, scale, shift, eps, total, normed, statistics, rows, width)
        return total, normed, statistics

    def add(self, x: Tensor, product: Tensor, branch: Branch) -> Tensor:
        """Give the sum of x and a branch."""
        total = torch.empty_like(x)
        self.call("add", x, product, branch, total, *x.shape)
        return total

    def branch_backward(self, grad: Tensor, product: Tensor | None, branch: Branch) -> tuple[Tensor, Tensor]:
        """Give the gradient of a branch's product, and the sums that `norm_backward` gives."""
        rows, width = grad.shape
        copy = torch.empty(rows, width, dtype=self.number)
        sums, parts = torch.empty(4, width), _parts(rows, 4 * width)
        no_norm = [None] * 4
        self.call("norm_backward", *no_norm, grad, None, product, branch, copy, sums, parts, rows, width)
        return copy, sums

    def norm_backward(
        self,
        dy: Tensor,
        x: Tensor,
        statistics: Tensor,
        scale: Tensor,
        grad: Tensor,
        product: Tensor | None = None,
        branch: Branch | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        """Compute the gradient of x: `grad` plus the gradient through the norm.

        Returns:
            The gradient; that of the branch's product, if there is one; and, `(4, D)`, the gradients of scale
            and shift, and of the branch's bias and layer scale.
        """
        rows, width = x.shape
        total, sums, parts = torch.empty_like(x), torch.empty(4, width), _parts(rows, 4 * width)
        copy = None if branch is None else torch.empty(rows, width, dtype=self.number)
        arguments = (dy, x, statistics, scale, grad, total, product, branch, copy, sums, parts)
        self.call("norm_backward", *arguments, rows, width)
        return total, copy, sums

    def bias_gelu(
        self, x: Tensor, bias: Tensor, form: int = 0, drop: Drop | None = None, tokens: int = 1
    ) -> Tensor:
        """Give GELU of x + bias, of which some numbers are dropped."""
        out = torch.empty_like(x)
        self.call("bias_gelu", x, bias, form, drop, tokens, out, *x.shape)
        return out

    def bias_gelu_backward(
        self, x: Tensor, bias: Tensor, grad: Tensor, form: int = 0, drop: Drop | None = None, tokens: int = 1
    ) -> Tensor:
        """Turn `grad`, in place, into the gradient of x; returns the gradient of bias."""
        sums, parts = torch.empty_like(bias), _parts(*x.shape)
        self.call("bias_gelu_backward", x, bias, form, drop, tokens, grad, grad, sums, parts, *x.shape)
        return sums

    def attention(
        self, qkv: Tensor, bias: Tensor, heads: int, rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give the values that attention mixes, `(B, T, D)` from `(B, T, 3D)`, and its weights, padded."""
        images, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
        mixed = torch.empty(images, tokens, width, dtype=self.number)
        padded = -(-tokens // PADDING) * PADDING
        weights = torch.empty(images, heads, tokens, padded, dtype=self.number)
        size = width // heads
        sizes = images, heads, tokens, size, 1 / math.sqrt(size)
        _require_memory(self.call("attention", qkv, bias, rotary, mixed, weights, *sizes))
        return mixed, weights

    def attention_backward(
        self, grad: Tensor, qkv: Tensor, bias: Tensor, weights: Tensor, rotary: Rotary | None = None
    ) -> tuple[Tensor, Tensor]:
        """Give the gradients of qkv and of its bias."""
        images, heads, tokens, _ = weights.shape
        size = qkv.shape[2] // 3 // heads
        out, sums = torch.empty_like(qkv), torch.empty(images, qkv.shape[2])
        sizes = images, heads, tokens, size, 1 / math.sqrt(size)
        _require_memory(self.call("attention_backward", grad, qkv, bias, rotary, weights, out, sums, *sizes))
        return out, sums.sum(0)


class Outline(Kernels):
    """The same functions without C: they take and free the same memory, which `models/measure.py` counts."""

    def __init__(self, precision: str) -> None:
        self.number = getattr(torch, precision)

    def call(self, name: str, *arguments: Argument) -> Any:
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
    def forward(
        ctx: Any, x: Tensor, k: Kernels, heads: int, eps: float, extras: Extras, *weights: Tensor
    ) -> Tensor:
        scale1, shift1, qkv_w, qkv_b, out_w, out_b, scale2, shift2, fc1_w, fc1_b, fc2_w, fc2_b, *gains = (
            weights
        )
        images, tokens, width = x.shape
        # (B * T, D): products of two dimensions are the fastest. The kernels read rows one after the other.
        tokens_in = x.reshape(-1, width).contiguous()
        # Cast once: the backward pass multiplies by the same matrices.
        matrices = [matrix.to(k.number) for matrix in (qkv_w, out_w, fc1_w, fc2_w)]
        qkv_m, out_m, fc1_m, fc2_m = matrices
        of_attention, of_mlp = _branches(extras, tokens, (out_b, fc2_b), gains)
        # Every product leaves its bias to the kernel that reads it next.
        _, normed1, statistics1 = k.norm(tokens_in, None, None, scale1, shift1, eps)
        qkv = k.product(normed1, qkv_m).view(images, tokens, 3 * width)
        mixed, attended = k.attention(qkv, qkv_b, heads, extras.rotary)
        mixed = mixed.view(-1, width)
        # The residual sum of eq. 2 is made by the norm of eq. 3, which reads it.
        projected = k.product(mixed, out_m)
        middle, normed2, statistics2 = k.norm(tokens_in, projected, of_attention, scale2, shift2, eps)
        hidden = k.product(normed2, fc1_m)
        active = k.bias_gelu(hidden, fc1_b, FORMS.index(extras.form), extras.drops[1], tokens)
        refined = k.product(active, fc2_m)
        out = k.add(middle, refined, of_mlp)
        ctx.kernels, ctx.extras = k, extras
        # The gradient of a layer scale needs what it multiplied.
        multiplied = [*gains, out_b, fc2_b, projected, refined] if gains else []
        # The inputs of every product, norm and GELU, in the order in which `backward` unpacks them. The
        # gradients of shifts and of the other biases are sums of gradients alone.
        ctx.save_for_backward(
            tokens_in, normed1, statistics1, qkv, attended, mixed, middle, normed2, statistics2, hidden,
            active, *matrices, scale1, qkv_b, scale2, fc1_b, *multiplied,
        )  # fmt: skip
        return out.view(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (
            x, normed1, statistics1, qkv, attended, mixed, middle, normed2, statistics2, hidden, active,
            qkv_m, out_m, fc1_m, fc2_m, scale1, qkv_b, scale2, fc1_b, *multiplied,
        ) = ctx.saved_tensors  # fmt: skip
        k: Kernels = ctx.kernels
        extras: Extras = ctx.extras
        shape, tokens, width = grad.shape, grad.shape[1], grad.shape[-1]
        grad = grad.reshape(-1, width).contiguous()
        projected = refined = None
        biases, gains = [scale1, scale1], []  # without a layer scale no bias is read
        if multiplied:
            *gains, out_b, fc2_b, projected, refined = multiplied
            biases = [out_b, fc2_b]
        of_attention, of_mlp = _branches(extras, tokens, biases, gains)
        form, drop = FORMS.index(extras.form), extras.drops[1]

        # The MLP, from its output to its input. The gradient of a bias is the sum over all tokens.
        dout, sums_out = k.branch_backward(grad, refined, of_mlp)
        dhidden = k.product(dout, fc2_m.t())
        fc2_w_grad = torch.mm(dout.t(), active)
        # `dhidden` is of GELU's input from here on.
        fc1_b_grad = k.bias_gelu_backward(hidden, fc1_b, dhidden, form, drop, tokens)
        fc1_w_grad = torch.mm(dhidden.t(), normed2)
        dnormed = k.product(dhidden, fc1_m.t())
        # `grad` has come past the branch, by the residual sum; what came through it is added by the norm.
        grad, dmiddle, sums2 = k.norm_backward(
            dnormed, middle, statistics2, scale2, grad, projected, of_attention
        )
        assert dmiddle is not None
        # Attention, in the same way.
        out_w_grad = torch.mm(dmiddle.t(), mixed)
        dqkv, qkv_b_grad = k.attention_backward(
            k.product(dmiddle, out_m.t()), qkv, qkv_b, attended, extras.rotary
        )
        dqkv = dqkv.view(-1, 3 * width)
        qkv_w_grad = torch.mm(dqkv.t(), normed1)
        dnormed = k.product(dqkv, qkv_m.t())
        grad, _, sums1 = k.norm_backward(dnormed, x, statistics1, scale1, grad)
        # In the order of `forward`'s arguments. `sums` hold the gradients of scale and shift, and of the
        # branch that was added before the norm: of its bias and of its layer scale.
        return (
            grad.view(shape), None, None, None, None,
            sums1[0], sums1[1], qkv_w_grad.float(), qkv_b_grad, out_w_grad.float(), sums2[2],
            sums2[0], sums2[1], fc1_w_grad.float(), fc1_b_grad, fc2_w_grad.float(), sums_out[2],
            *((sums2[3], sums_out[3]) if gains else ()),
        )  # fmt: skip


def _branches(extras: Extras, tokens: int, biases: Sequence[Tensor], gains: Sequence[Tensor]) -> list[Branch]:
    """Describe the branches of attention and MLP."""
    parts = zip(biases, gains or (None, None), extras.paths, extras.drops[::2], strict=True)
    return [Branch(bias, gain, path, drop, tokens) for bias, gain, path, drop in parts]


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
