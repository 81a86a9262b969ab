"""The tanh form of GELU in one pass over memory, compiled from `gelu.c` where there is a compiler.

PyTorch's own takes three to four times as long on a processor, because of its hyperbolic tangent. It is used
where there is no compiler. Forward and backward of 1,576 x 1,536 take it 4.1 and 4.6 ms, and 1.3 and 1.5 ms
here; separate passes took 4 to 10, a compiled graph 1.9 and 2.4 after 25 s of compiling.
"""

import ctypes
import functools
import math
from collections.abc import Callable
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
    library = load(SOURCE, compile_it=True).library
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
SOURCE = Source(
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
