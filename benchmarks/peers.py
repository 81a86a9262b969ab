#!/usr/bin/env python
"""Training steps and inference of vitkit and of other libraries, of the same architectures, side by side.

    python -m benchmarks.peers [ViT-S/16 ...] [--phases inference] [--seconds 60] [--slow] [--json FILE]

Run from the repository's root; `scripts/bench-peers` does so where all libraries are installed. Without
models the cases of the table in the docs are timed, or some of them (--cases Ti S). Libraries that are not
installed are left out, and all contestants take turns within a round.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.contestants import PEERS, installed_peers, peer_contestants
from benchmarks.records import write_records
from benchmarks.slow_peers import compiled, int8_contestants
from benchmarks.utilisation import Utilised, compare_utilisation

from vitkit.errors import VitkitError
from vitkit.jobs.bench import (
    Speed,
    describe_machine,
    timed_precisions,
    vitkit_contestants,
)
from vitkit.models.config import DINOV3_ROTARY, ViTConfig
from vitkit.models.zoo import vit_config
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


TI_16, S_16 = vit(224, 16, 192, 12, 3, 768), vit(224, 16, 384, 12, 6, 1536)
VARIANTS: dict[str, dict[str, Any]] = {
    "erf": {"gelu": "erf"},
    "stochastic depth": {"drop_path": 0.1},
    "dropout": {"dropout": 0.1},
    "layer scale": {"layer_scale": 1e-5},
    "rotary": {"rotary": DINOV3_ROTARY, "position": "none"},
}
"""Each adds to the plain blocks what models of other libraries, or trainings, have."""
CASES = {
    "Ti/16 batch 16": Case(TI_16, 16),
    "S/16 batch 8": Case(S_16, 8),
    **{f"Ti/16 {name}, batch 16": Case(replace(TI_16, **own), 16) for name, own in VARIANTS.items()},
    **{f"S/16 {name}, batch 8": Case(replace(S_16, **own), 8) for name, own in VARIANTS.items()},
    "S/8 batch 1": Case(vit(224, 8, 384, 12, 6, 1536), 1),
    "B/16 batch 1": Case(vit(224, 16, 768, 12, 12, 3072), 1),
    "B/16 batch 4": Case(vit(224, 16, 768, 12, 12, 3072), 4),
    "digits batch 64": Case(vit(16, 4, 64, 4, 4, 128, 10), 64),
    "CIFAR batch 128": Case(vit(32, 4, 96, 6, 3, 384, 10), 128),
}


def speeds_of(
    name: str, case: Case, phase: BenchPhase, peers: list[str], seconds: float, slow: bool
) -> list[Utilised]:
    """Time all contestants of a case; says which peers cannot take part."""
    device, config = torch.device("cpu"), case.config
    precisions = timed_precisions("auto", device)
    contestants = list(vitkit_contestants(config, device, phase, precisions, case.batch))
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
    # Ratios are taken to timm's fastest in float32, else to our plain way.
    base = [c.name for c in contestants if c.library == "timm" and c.precision == "float32"]
    references = base or [c.name for c in contestants if c.library == "vitkit exact"]
    timed = compare_utilisation(name, config, phase, contestants, references, images, clock, seconds)
    return list(timed)


def headlines(speeds: Sequence[Speed]) -> list[str]:
    """Say, by precision, the speed of vitkit's fastest engine over the best peer's; of one model and size."""
    lines = []
    for precision in dict.fromkeys(speed.precision for speed in speeds):
        timed = [s for s in speeds if s.precision == precision and s.library != "vitkit exact"]
        own = [s for s in timed if s.library.startswith("vitkit")]
        peers = [s for s in timed if not s.library.startswith("vitkit")]
        if own and peers:
            mine, best = (min(side, key=lambda speed: speed.seconds) for side in (own, peers))
            least = best.least_seconds / mine.least_seconds
            lines.append(
                f"{precision}: {mine.name} has {best.seconds / mine.seconds:.2f} times the speed of the best "
                f"peer ({best.name}) by medians, {least:.2f} by least times"
            )
    return lines


def main(arguments: list[str] | None = None) -> None:
    there, missing = installed_peers()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="*", help="names such as ViT-S/16; the cases of the docs if none")
    parser.add_argument("--image-size", type=int, default=224, help="of the models, pixels a side")
    parser.add_argument("--batch-size", type=int, default=8, help="of the models")
    parser.add_argument("--cases", nargs="*", default=[], help=f"words of {', '.join(CASES)}; all if none")
    parser.add_argument("--phases", nargs="*", default=["training", "inference"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=there)
    parser.add_argument("--seconds", type=float, default=60, help="for each case and phase")
    parser.add_argument("--slow", action="store_true", help="timm compiled too, and engines in int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the records are written")
    options = parser.parse_args(arguments)
    cases = CASES
    if options.models:
        cases = {
            f"{model} at {options.image_size} pixels, batch {options.batch_size}": Case(
                vit_config(model, 1000, options.image_size), options.batch_size
            )
            for model in options.models
        }
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as `vitkit train` and `vitkit bench` do, for every contestant
    if missing:
        print(
            f"Not installed, so left out: {', '.join(missing)}. scripts/bench-peers makes an environment "
            "with all of them.",
            file=sys.stderr,
        )
    machine = describe_machine(torch.device("cpu"), options.threads)
    print(f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}")
    records: list[Utilised] = []
    for name, case in cases.items():
        if options.cases and not any(word in name for word in options.cases):
            continue
        for phase in options.phases:
            speeds = speeds_of(name, case, phase, options.peers, options.seconds, options.slow)
            records += speeds
            print(f"\n{name}, {phase}: speed over {speeds[0].reference}")
            for speed in speeds:
                low, high = speed.ratio_quartiles
                print(f"  {speed.name:32} {1e3 * speed.seconds:9.1f} ms   {speed.ratio:5.2f}", end="  ")
                print(f"({low:.2f} to {high:.2f})  utilisation {speed.mfu or 0:.0%}")
            print(*(f"  {line}" for line in headlines(speeds)), sep="\n", flush=True)
            if options.json is not None:
                write_records(options.json, machine, records)


if __name__ == "__main__":
    main()
