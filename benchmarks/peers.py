#!/usr/bin/env python
"""Training steps and inference of vitkit and of other libraries, of the same architectures, side by side.

    python -m benchmarks.peers [--cases Ti S] [--phases inference] [--seconds 60] [--slow] [--json FILE]

Run from the repository's root; `scripts/bench-peers` does so where all libraries are installed. It is what
`vitkit bench --peers` does, on the cases of the table in the docs: libraries that are not installed are left
out, and all contestants take turns within a round.
"""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.slow_peers import compiled, int8_contestants

from vitkit.errors import VitkitError
from vitkit.jobs.bench.bench import compare, describe_machine
from vitkit.jobs.bench.contestants import (
    PEERS,
    installed_peers,
    peer_contestants,
    timed_precisions,
    vitkit_contestants,
)
from vitkit.jobs.bench.records import Speed, headlines, write_records
from vitkit.models.config.vit_config import ViTConfig
from vitkit.runs.machine import keep_freed_memory
from vitkit.runs.timing import BenchPhase, Clock


@dataclass(frozen=True)
class Case:
    """An architecture and a batch."""

    config: ViTConfig
    batch: int


def vit(
    size: int, patch: int, width: int, depth: int, heads: int, mlp: int, classes: int = 1000
) -> ViTConfig:
    return ViTConfig((size, size), (patch, patch), width, depth, heads, mlp, classes)


CASES = {
    "Ti/16 batch 16": Case(vit(224, 16, 192, 12, 3, 768), 16),
    "S/16 batch 8": Case(vit(224, 16, 384, 12, 6, 1536), 8),
    "B/16 batch 1": Case(vit(224, 16, 768, 12, 12, 3072), 1),
    "B/16 batch 4": Case(vit(224, 16, 768, 12, 12, 3072), 4),
    "digits batch 64": Case(vit(16, 4, 64, 4, 4, 128, 10), 64),
    "CIFAR batch 128": Case(vit(32, 4, 96, 6, 3, 384, 10), 128),
}


def speeds_of(
    name: str, case: Case, phase: BenchPhase, peers: list[str], seconds: float, slow: bool
) -> list[Speed]:
    """Time all contestants of a case; says which peers cannot take part."""
    device, config = torch.device("cpu"), case.config
    precisions = timed_precisions("auto", device)
    contestants = list(vitkit_contestants(config, device, phase, precisions))
    images = torch.randn(case.batch, 3, *config.image_size, generator=torch.Generator().manual_seed(0))
    for peer in peers:
        try:
            contestants += peer_contestants(peer, config, images, phase, precisions)
        except VitkitError as error:
            print(error, file=sys.stderr)
    if slow:
        timms = [contestant for contestant in contestants if contestant.library == "timm"]
        contestants += [compiled(timm) for timm in timms if timm.name.endswith("fused")]
        if phase == "inference":
            contestants += int8_contestants(config, images)
    clock = Clock(device, torch.get_num_threads())
    return list(compare(name, config, phase, contestants, images, clock, seconds))


def main() -> None:
    there, missing = installed_peers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="*", default=[], help=f"words of {', '.join(CASES)}; all if none")
    parser.add_argument("--phases", nargs="*", default=["training", "inference"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=there)
    parser.add_argument("--seconds", type=float, default=60, help="for each case and phase")
    parser.add_argument("--slow", action="store_true", help="timm compiled too, and engines in int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the records are written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `vitkit train` and `vitkit bench` do, for every contestant
    if missing:
        print(f"Not installed, so left out: {', '.join(missing)}.", file=sys.stderr)
    machine = describe_machine(torch.device("cpu"), options.threads)
    print(f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    records: list[Speed] = []
    for name, case in CASES.items():
        if options.cases and not any(word in name for word in options.cases):
            continue
        for phase in options.phases:
            speeds = speeds_of(name, case, phase, options.peers, options.seconds, options.slow)
            records += speeds
            print(f"\n{name}, {phase}: speed over {speeds[0].reference}")
            for speed in speeds:
                low, high = speed.ratio_quartiles
                print(f"  {speed.name:32} {1e3 * speed.seconds:9.1f} ms   {speed.ratio:5.2f}", end="  ")
                print(f"({low:.2f} to {high:.2f})")
            print(*(f"  {line}" for line in headlines(speeds)), sep="\n", flush=True)
            if options.json is not None:
                write_records(options.json, machine, records)


if __name__ == "__main__":
    main()
