#!/usr/bin/env python
"""Measure how near compiled attention comes to the rate of `torch.mm` on one core, forward and backward.

    python -m benchmarks.attention

Run from the repository's root. The shares are of the rate at which matrices of 2048 x 2048 are multiplied;
softmax and copies are time in which nothing is multiplied.
"""

import time
from collections.abc import Callable

import torch

from vitkit.kernels.block import compiled_block
from vitkit.runs.machine import keep_freed_memory

CASES = {"Ti/16": (32, 3, 197), "S/16": (16, 6, 197), "S/8": (4, 6, 785)}
"""Images, heads and tokens."""
HEAD_DIM, SIZE = 64, 2048


def least_seconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(8):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    for number in (torch.float32, torch.bfloat16):
        name = str(number).removeprefix("torch.")
        kernels = compiled_block(name, True, False)
        if kernels is None:
            print(f"{name}: not compiled here")
            continue
        a, b = torch.randn(2, SIZE, SIZE).to(number)
        rate = 2 * SIZE**3 / least_seconds(lambda a=a, b=b: torch.mm(a, b))  # type: ignore[misc]
        print(f"{name}: torch.mm {rate / 1e9:.0f} GFLOP/s")
        for case, (images, heads, tokens) in CASES.items():
            width = heads * HEAD_DIM
            qkv = torch.randn(images, tokens, 3 * width).to(number)
            grad, bias = torch.randn(images, tokens, width).to(number), torch.randn(3 * width)
            weights = kernels.attention(qkv, bias, heads)[1]
            forward = least_seconds(lambda: kernels.attention(qkv, bias, heads))  # noqa: B023
            backward = least_seconds(lambda: kernels.attention_backward(grad, qkv, bias, weights))  # noqa: B023
            product = 2 * images * heads * tokens**2 * HEAD_DIM  # two products forward, four backward
            shares = (2 * product / forward, 4 * product / backward, 6 * product / (forward + backward))
            print(f"  {case:<6}" + "".join(f"{share / rate:>8.1%}" for share in shares))


if __name__ == "__main__":
    main()
