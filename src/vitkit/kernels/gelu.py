"""The tanh form of GELU in one pass over memory, compiled from `gelu.c` where there is a compiler.

PyTorch's own takes three to four times as long on a processor, because of its hyperbolic tangent. Where there
is no compiler, whoever asked takes PyTorch's.
"""

import ctypes
import functools
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SOURCE = Path(__file__).with_name("gelu.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""The last two let it use vectors; none of them lets it change a result."""
TIMEOUT = 60
"""Seconds for a compilation that takes a fraction of one."""
TYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}

Gelu = Callable[[Tensor], Tensor]


@functools.cache
def compiled_gelu() -> Gelu | None:
    """Compile GELU for this processor, once in a process; None where that is not possible.

    The library is made in a folder of its own and loaded from it, so that nothing stays behind that another
    machine or another user could load.
    """
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="vitkit-") as folder:
            path = Path(folder) / "gelu.so"
            command = [compiler, *FLAGS, "-fopenmp", "-shared", "-fPIC", str(SOURCE), "-o", str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
            library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError):
        return None  # no room, no OpenMP, another compiler's options: PyTorch's does the same

    def gelu(x: Tensor) -> Tensor:
        """GELU in its tanh form, of any shape; what the kernel was not made for is PyTorch's."""
        if x.device.type != "cpu" or x.dtype not in TYPES:
            return F.gelu(x, approximate="tanh")
        return _Gelu.apply(x, library)  # type: ignore[no-any-return, no-untyped-call]

    return gelu


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
    first = inputs[0]
    out = torch.empty_like(first)
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*inputs, out)]
    count, threads = ctypes.c_long(first.numel()), ctypes.c_int(torch.get_num_threads())
    getattr(library, f"{name}_{TYPES[first.dtype]}")(*pointers, count, threads)
    return out
