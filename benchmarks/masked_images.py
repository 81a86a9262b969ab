#!/usr/bin/env python
"""A pre-training step of MAE beside transformers' ViTMAE of the same sizes, in turns on one thread.

    python -m benchmarks.masked_images [--rounds 8] [--batch-size 16]

Run from the repository's root with transformers installed. ViT-S/16 with a decoder of 8 layers of 512, in
bfloat16; transformers with explicit attention, which is the faster one there. Printed are medians, and the
ratio with its quartiles.
"""

import argparse
import statistics
from importlib import import_module
from typing import Any

import torch
from torch import nn

from vitkit.data.stream.loader import Batch
from vitkit.jobs.convert import import_library
from vitkit.models.build import build_model
from vitkit.models.zoo import vit_config
from vitkit.runs import machine
from vitkit.runs.timing import Clock, Step
from vitkit.training.config import MAEConfig, OptimizerConfig
from vitkit.training.objectives import MAE
from vitkit.training.optim import create_optimizer

SIZE, WIDTH, LAYERS, HEADS = 224, 512, 8, 16
"""Pixels a side, and the decoder."""


def our_step(images: torch.Tensor) -> Step:
    config = vit_config("ViT-S/16", 1000, SIZE)
    model = build_model(config)
    learner = MAE(MAEConfig(decoder_width=WIDTH, decoder_depth=LAYERS, decoder_heads=HEADS), config)
    trained = nn.ModuleList([model, learner]).train()
    optimizer = create_optimizer(trained, OptimizerConfig())
    way = machine.choose_for(
        config, images.device, "bfloat16", phase="training", exact=False, images=len(images)
    )
    machine.compute_as(model, way, learner)
    ids = torch.arange(len(images))
    batch = Batch(images, {}, ids >= 0, ids)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss, _ = learner(model, batch, 0, 100)
        loss.backward()
        optimizer.step()

    return step


def their_step(images: torch.Tensor) -> Step:
    transformers: Any = import_module("transformers")
    config = transformers.ViTMAEConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=6,
        intermediate_size=1536,
        decoder_hidden_size=WIDTH,
        decoder_num_hidden_layers=LAYERS,
        decoder_num_attention_heads=HEADS,
        decoder_intermediate_size=4 * WIDTH,
        image_size=SIZE,
        patch_size=16,
        mask_ratio=0.75,
    )
    model = transformers.ViTMAEForPreTraining(config)
    model.set_attn_implementation("eager")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    pixels = images / 127.5 - 1

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(pixel_values=pixels).loss
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.masked_images")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    import_library("transformers")
    torch.set_num_threads(1)
    machine.keep_freed_memory()
    images = torch.randint(0, 256, (options.batch_size, 3, SIZE, SIZE), dtype=torch.uint8)
    clock, steps = Clock(images.device, 1), {"vitkit": our_step(images), "transformers": their_step(images)}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(options.rounds + 1):
        for name, step in steps.items():
            seconds = clock.seconds(step)
            if number:  # the first round takes memory
                taken[name].append(seconds)
    for name, seconds_of_all in taken.items():
        print(f"{name:<14}{1000 * statistics.median(seconds_of_all):>8,.0f} ms")
    ratios = [theirs / ours for ours, theirs in zip(*taken.values(), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"transformers takes {middle:.2f} times as long ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
