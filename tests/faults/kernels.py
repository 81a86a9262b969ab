"""The C kernels under the sanitizers of addresses and of undefined behaviour, on random shapes and extremes.

Each is built with both and handed to vitkit in a process of its own, whose allocations the sanitizer guards:
a byte read or written beside a tensor, a shift or a conversion that C does not define, ends it. What is
computed is compared as well, with float64 and with Pillow.
"""

import itertools
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from tests.faults.harness import Kind, Outcome

SANITIZERS = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"),
)
"""Flags after the kernel's own, of which the last -O counts."""
# PyTorch and Python keep what they have until they end, and free what other functions allocated.
QUIET = "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0:detect_odr_violation=0"
TRIALS = 40
"""Trials of one case: it takes seconds to import PyTorch."""
SCALES = (1e-20, 1e-3, 1.0, 1.0, 1.0, 30.0, 1e18, 3e38, math.inf, math.nan)
TOKENS = (0, 1, 2, 3, 5, 6, 7, 15, 16, 17, 31, 33, 50, 64, 65, 100, 197, 256, 257, 577)


class Kernels(Kind):
    """Each case is some trials of one kernel: GELU, the block in float32 or bfloat16, the resize."""

    name, count, limit = "kernels", 80, 300.0
    sample = (0, 1, 2, 3)
    limits_addresses = False  # a sanitizer keeps a note of every address there could be

    def prepare(self, folder: Path) -> None:
        from tests.faults.entry import kernel_sources

        compiler = shutil.which("gcc") or ""
        # The library of C++ too: the sanitizer must find its exceptions before PyTorch is loaded.
        runtimes = [_runtime(compiler, name) for name in ("libasan.so", "libstdc++.so.6")]
        if not all(runtimes):
            (folder / "skipped").write_text("there is no gcc with a sanitizer of addresses (libasan)")
            return
        (folder / "runtimes").write_text(":".join(runtimes))
        for name, source in kernel_sources().items():
            command = [compiler, *source.flags, *SANITIZERS, "-shared", "-fPIC", str(source.path)]
            subprocess.run([*command, "-o", str(folder / f"{name}.so"), "-lm"], check=True)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        skipped = shared / "skipped"
        if skipped.exists():
            return Outcome("words", f"skipped: {skipped.read_text()}")
        names = sorted(path.stem for path in shared.glob("*.so"))
        name = names[number % len(names)]
        environment = {
            **os.environ,
            "LD_PRELOAD": (shared / "runtimes").read_text(),
            "ASAN_OPTIONS": QUIET,
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "OMP_NUM_THREADS": "2",
        }
        command = [
            sys.executable,
            "-m",
            "tests.faults.kernels",
            str(shared),
            name,
            str(draw.randrange(2**32)),
        ]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        if ended.returncode == 0:
            return Outcome("right", ended.stdout.strip().splitlines()[-1])
        lines = [line for line in (ended.stderr + ended.stdout).splitlines() if line.strip()]
        telling = [line for line in lines if "error" in line.lower() or "differ" in line]
        return Outcome(
            "wrong", f"{name}: {(telling or lines or ['no word'])[0]}, after {ended.stdout[-300:]}"
        )


def _runtime(compiler: str, name: str) -> str:
    """Return the path of a compiler's library; empty where it has none, or there is no compiler."""
    if not compiler:
        return ""
    answer = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True)
    path = answer.stdout.strip()
    return path if Path(path).is_absolute() else ""


def try_gelu(name: str, draw: Random) -> Iterator[str]:
    """Try the compiled GELU on arrays of any stride, against the formula."""
    import torch

    from tests.faults.entry import gelu_kernel

    gelu = gelu_kernel()
    while True:
        dtype, scale = draw.choice((torch.float32, torch.bfloat16)), draw.choice(SCALES)
        shape = [draw.choice((0, 1, 2, 3, 7, 16, 17, 33, 300)) for _ in range(draw.randrange(4))]
        yield f"gelu {dtype} {shape} {scale}"
        x, grad = (_array(size, dtype, draw) for size in (shape, shape))
        x = (x * scale).detach().requires_grad_()
        value = gelu(x)
        (slope,) = torch.autograd.grad(value, x, grad)
        exact = x.detach().double()
        inner = math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
        expected = torch.where(exact < -30, 0, 0.5 * exact * (1 + inner.tanh()))
        derivative = 0.5 * (1 + inner.tanh()) + 0.5 * exact * (1 - inner.tanh() ** 2) * math.sqrt(
            2 / math.pi
        ) * (1 + 3 * 0.044715 * exact**2)
        derivative = torch.where(exact.abs() > 30, (exact > 0).double(), derivative) * grad.double()
        finite = exact.isfinite()
        unit = 2**-7 if dtype == torch.bfloat16 else 4e-6
        for computed, reference in ((value, expected), (slope, derivative)):
            error = (computed.detach().double() - reference)[finite].abs()
            if (error > unit * (1 + reference[finite].abs())).any():
                raise SystemExit(f"GELU and its formula differ by {error.max()}")


def try_block(name: str, draw: Random) -> Iterator[str]:
    """Try a compiled block, value and gradients, against PyTorch's functions in float64."""
    import torch

    from tests.faults.entry import block_kernel, plain_block

    precision = name.removeprefix("block-")
    function, tolerance = block_kernel(precision)
    while True:
        heads, size = draw.choice((1, 1, 2, 3)), 16 * draw.choice((1, 2, 3, 4, 5, 8, 16))
        tokens, images, hidden = (
            draw.choice(TOKENS),
            draw.choice((0, 1, 1, 2, 3)),
            draw.choice((1, 7, 64, 768)),
        )
        scale, threads, width = draw.choice(SCALES), draw.choice((1, 2)), heads * size
        if images * tokens * width > 2**18:  # seconds under the sanitizers
            continue
        yield f"block {precision} {images} x {tokens} x {heads} x {size}, hidden {hidden}, {scale}, {threads}"
        torch.set_num_threads(threads)
        shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
        shapes += [(width,), (width,), (hidden, width), (hidden,), (width, hidden), (width,)]
        weights = [torch.randn(shape) / shape[-1] ** 0.5 for shape in shapes]
        x, grad = (_array([images, tokens, width], torch.float32, draw) for _ in range(2))
        given = [(x * scale).detach(), *weights]
        ours = [tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in given]
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            value = function(ours[0], tuple(ours[1:]), heads, 1e-6)
        if value is None:
            raise SystemExit("an error: the kernel was not used")
        outputs = [value, *torch.autograd.grad(value, ours, grad)]
        # Numbers beyond these have squares that float32 has not; of few hidden numbers, sums cancel; and of
        # equal numbers the deviation is nothing but rounding.
        if not 1e-19 < scale < 1e18 or hidden < 64 or not x.numel() or x.stride(-1) == 0:
            continue
        plain = [tensor.double().requires_grad_() for tensor in given]
        expected = plain_block(plain[0], plain[1:], heads, 1e-6)
        references = [expected, *torch.autograd.grad(expected, plain, grad.double())]
        for output, reference in zip(outputs, references, strict=True):
            error, most = (output.detach().double() - reference).abs().max(), reference.abs().max()
            if not error <= 4 * tolerance * most + 1e-6:
                raise SystemExit(f"the block and its formulas differ by {error} of {most}")


def try_resample(name: str, draw: Random) -> Iterator[str]:
    """Try the compiled resize, cut and mirrored, against Pillow; and samples without averaging."""
    import numpy as np
    from PIL import Image

    from tests.faults.entry import RESIZES, resize_kernel, sample_kernel

    numbers = np.random.default_rng(draw.randrange(2**32))
    while True:
        height, width, rows, columns = (draw.choice((1, 2, 3, 7, 31, 64, 97, 400)) for _ in range(4))
        interpolation, mirrored = draw.choice(list(RESIZES)), draw.random() < 0.5
        first, before = draw.randrange(rows), draw.randrange(columns)
        last, after = draw.randint(first + 1, rows), draw.randint(before + 1, columns)
        whole = draw.random() < 0.5
        top, left = (0.0, 0.0) if whole else (draw.uniform(0, height / 2), draw.uniform(0, width / 2))
        yield f"resize {height} x {width} to {rows} x {columns}, {interpolation}, {mirrored}, {first} {last}"
        source = numbers.integers(0, 256, (height, width, 3), dtype=np.uint8)
        source = source[:, ::-1] if mirrored else source
        cut = (first, before, last, after)
        out = np.empty((3, last - first, after - before), np.uint8).transpose(1, 2, 0)
        resized = resize_kernel(source, (top, left, height, width), (rows, columns), interpolation, cut, out)
        image = Image.fromarray(np.ascontiguousarray(source))
        box = (left, top, width, height)
        theirs = np.asarray(image.resize((columns, rows), RESIZES[interpolation], box))
        if resized is None or not np.array_equal(resized, theirs[first:last, before:after]):
            raise SystemExit("the resize and Pillow's differ, or an error: the kernel was not used")
        down, across = (
            (
                lower := numbers.integers(0, size, count),
                np.minimum(lower + 1, size - 1),
                numbers.random(count),
            )
            for size, count in ((height, rows), (width, columns))
        )
        plane = np.empty((rows, columns, 3), np.uint8)
        with_float32 = [(a, b, weight.astype(np.float32)) for a, b, weight in (down, across)]
        if sample_kernel(source, with_float32[0], with_float32[1], plane) is None:
            raise SystemExit("an error: the kernel was not used")


def _array(shape: list[int], dtype: Any, draw: Random) -> Any:
    """Draw a tensor: contiguous, turned around, every second of twice as many, one row or number expanded."""
    import torch

    match draw.randrange(5):
        case 0:
            return torch.randn(shape).to(dtype)
        case 1:
            return torch.randn(shape[::-1]).to(dtype).permute(tuple(range(len(shape))[::-1]))
        case 2:
            return torch.randn([2 * size for size in shape]).to(dtype)[(slice(None, None, 2),) * len(shape)]
        case 3:
            return torch.randn(shape[-1:]).to(dtype).expand(shape)
        case _:
            return torch.randn(()).to(dtype).expand(shape)


def main() -> None:
    """Try one kernel, as `Kernels.attempt` asks for it."""
    shared, name, seed = sys.argv[1:]
    import torch

    from tests.faults.entry import take_libraries

    take_libraries(Path(shared))
    torch.manual_seed(int(seed))
    trials = {"gelu": try_gelu, "resample": try_resample}.get(name, try_block)(name, Random(int(seed)))
    for trial in itertools.islice(trials, TRIALS):
        print(trial, flush=True)
    print(f"{TRIALS} trials of {name}")


if __name__ == "__main__":
    main()
