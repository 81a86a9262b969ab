#!/usr/bin/env python
"""Training steps and inference of vitkit and of other libraries, of the same architectures, side by side.

    python -m benchmarks.peers [--cases Ti S] [--phases training inference] [--rounds 9] [--json FILE]

Run from the repository's root. Libraries that are not installed are left out; it says which. All contestants
take turns within a round, in an order that rotates, so that a busy machine slows all of them; what is
compared is the processor time of a step, within each round. A training step is forward, cross-entropy,
backward and a fused AdamW; inference is on normalised floats. Peers compute as their users would have them:
exact GELU, and both forms of attention, of which the faster one counts.
"""

import argparse
import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tests.peers.operators import register_missing_operators
from torch import Tensor, nn

from vitkit.jobs.computing import choose_for, compute_as
from vitkit.models.build import build_model
from vitkit.models.compute_config import PLAIN
from vitkit.models.precision_config import Precision
from vitkit.models.vit_config import ViTConfig
from vitkit.training.checkpoint import processor_name
from vitkit.training.optim import create_optimizer
from vitkit.training.optim_config import OptimizerConfig

LEARNING_RATE = 1e-5
"""Small, so that many steps on the same images change little."""


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


@dataclass(frozen=True)
class Contestant:
    """A model of a library, ready to run."""

    name: str
    library: str
    precision: str
    model: nn.Module
    logits: Callable[[nn.Module, Tensor], Tensor] = lambda model, images: model(images)


def vitkit_contestants(case: Case, phase: str) -> Iterator[Contestant]:
    """The plain way, and what is chosen in either precision."""
    ours: Any = "training" if phase == "training" else "evaluation"
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    for precision in precisions:
        model = build_model(case.config)
        compute_as(model, choose_for(case.config, torch.device("cpu"), precision, phase=ours, exact=False))
        yield Contestant(f"vitkit {precision}", "vitkit", precision, model)
    model = build_model(case.config)
    assert model.chosen == PLAIN
    yield Contestant("vitkit --exact", "vitkit exact", "float32", model)


def timm_contestants(case: Case) -> Iterator[Contestant]:
    """timm's own VisionTransformer with the sizes of the case."""
    register_missing_operators()
    timm = importlib.import_module("timm.models.vision_transformer")
    config = case.config
    for precision in ("float32", "bfloat16"):
        for attention in ("fused", "explicit"):
            model = timm.VisionTransformer(
                img_size=config.image_size,
                patch_size=config.patch_size,
                embed_dim=config.width,
                depth=config.depth,
                num_heads=config.num_heads,
                mlp_ratio=config.mlp_dim / config.width,
                num_classes=config.num_classes,
            )
            for block in model.blocks:
                block.attn.fused_attn = attention == "fused"
            yield Contestant(f"timm {precision} {attention}", "timm", precision, model)


def huggingface_contestants(case: Case) -> Iterator[Contestant]:
    """transformers' ViT with the sizes of the case."""
    register_missing_operators()
    transformers = importlib.import_module("transformers")
    config = case.config
    for precision in ("float32", "bfloat16"):
        for attention in ("sdpa", "eager"):
            settings = transformers.ViTConfig(
                image_size=config.image_size[0],
                patch_size=config.patch_size[0],
                hidden_size=config.width,
                num_hidden_layers=config.depth,
                num_attention_heads=config.num_heads,
                intermediate_size=config.mlp_dim,
                num_labels=config.num_classes,
                attn_implementation=attention,
            )
            model = transformers.ViTForImageClassification(settings)
            yield Contestant(
                f"transformers {precision} {attention}",
                "transformers",
                precision,
                model,
                lambda model, images: model(pixel_values=images).logits,
            )


PEERS = {"timm": timm_contestants, "transformers": huggingface_contestants}


def contestants(case: Case, phase: str, peers: list[str]) -> list[Contestant]:
    found = list(vitkit_contestants(case, phase))
    for peer in peers:
        found += PEERS[peer](case)
    return found


def step_of(contestant: Contestant, case: Case, phase: str) -> Callable[[], None]:
    """Return what is timed: one training step, or one forward pass."""
    config, model = case.config, contestant.model
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(case.batch, 3, *config.image_size, generator=generator)
    labels = torch.randint(0, config.num_classes, (case.batch,), generator=generator)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=contestant.precision == "bfloat16")
    if phase == "inference":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), autocast:
                contestant.logits(model, images)

        return infer
    model.train()
    optimizer = create_optimizer(model, OptimizerConfig())
    for group in optimizer.param_groups:
        group["lr"] = LEARNING_RATE

    def train() -> None:
        optimizer.zero_grad()
        with autocast:
            logits = contestant.logits(model, images)
        F.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return train


def measure(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Return the processor seconds of each step in each round."""
    for step in steps.values():
        step()  # warm up: threads, caches, the optimiser's state
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            started = time.process_time()
            steps[name]()
            seconds[name].append(time.process_time() - started)
    return seconds


def compare(seconds: dict[str, list[float]], found: list[Contestant]) -> list[dict[str, Any]]:
    """Return a record for each contestant: its time, and its speed over the fastest float32 of timm's."""
    base = [c.name for c in found if c.library == "timm" and c.precision == "float32"] or [found[-1].name]
    reference = min(base, key=lambda name: statistics.median(seconds[name]))
    records = []
    for contestant in found:
        times = seconds[contestant.name]
        ratios = [other / own for own, other in zip(times, seconds[reference], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        records.append(
            {
                "name": contestant.name,
                "library": contestant.library,
                "precision": contestant.precision,
                "milliseconds": 1e3 * statistics.median(times),
                "least_milliseconds": 1e3 * min(times),
                "reference": reference,
                "speed": middle,
                "quartiles": [low, high],
            }
        )
    return records


def headline(records: list[dict[str, Any]]) -> list[str]:
    """Say what the goals ask for: vitkit over the best peer, by precision."""
    lines = []
    for precision in ("float32", "bfloat16"):
        own = [r for r in records if r["library"] == "vitkit" and r["precision"] == precision]
        peers = [r for r in records if not r["library"].startswith("vitkit") and r["precision"] == precision]
        if own and peers:
            best = min(peers, key=lambda record: float(record["milliseconds"]))
            by_median = best["milliseconds"] / own[0]["milliseconds"]
            by_least = min(r["least_milliseconds"] for r in peers) / own[0]["least_milliseconds"]
            lines.append(
                f"{precision}: {by_median:.2f} times the best peer's speed ({best['name']}) by medians, "
                f"{by_least:.2f} by least times"
            )
    return lines


def installed(wanted: list[str]) -> list[str]:
    """Return those of the peers that can be imported; says which cannot."""
    found = []
    register_missing_operators()
    for peer in wanted:
        try:
            importlib.import_module(peer)
        except ImportError:
            print(f"{peer} is not installed: left out.", file=sys.stderr)
        else:
            found.append(peer)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cases", nargs="*", default=[], help=f"words of {', '.join(CASES)}; all if none")
    parser.add_argument("--phases", nargs="*", default=["training", "inference"])
    parser.add_argument("--precisions", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--rounds", type=int, default=9, help="of all contestants, at least 2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the records are written")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peers = installed(options.peers)
    machine = {"processor": processor_name(), "threads": options.threads, "torch": torch.__version__}
    print(f"{machine['processor']}, {options.threads} threads, torch {machine['torch']}")
    results = []
    for name, case in CASES.items():
        if options.cases and not any(word in name for word in options.cases):
            continue
        for phase in options.phases:
            found = [one for one in contestants(case, phase, peers) if one.precision in options.precisions]
            steps = {one.name: step_of(one, case, phase) for one in found}
            records = compare(measure(steps, max(2, options.rounds)), found)
            results.append({"case": name, "phase": phase, "rounds": options.rounds, "records": records})
            print(f"\n{name}, {phase}: speed over {records[0]['reference']}")
            for record in records:
                low, high = record["quartiles"]
                print(
                    f"  {record['name']:32} {record['milliseconds']:9.1f} ms   {record['speed']:5.2f}"
                    f"  ({low:.2f} to {high:.2f})"
                )
            print(*(f"  {line}" for line in headline(records)), sep="\n", flush=True)
            if options.json is not None:
                options.json.write_text(json.dumps({**machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
