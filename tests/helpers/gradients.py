"""Gradients of a batch that several processes compute together, for tests."""

import dataclasses
from typing import Any

import torch
from torch import nn

from vitkit.data.stream.loader import Batch
from vitkit.models.build import build_model
from vitkit.models.zoo import model_config
from vitkit.training.config import ClassificationConfig, Sharding, TrainingConfig
from vitkit.training.gradients import Gradients, collect, divide, places_of, shard
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer
from vitkit.world import World

BATCH = 7
CONFIG = TrainingConfig(batch_size=BATCH, micro_batch_size=5)


def gradients_of(
    world: World,
    name: str,
    changes: dict[str, Any],
    objective: dict[str, Any],
    sharding: Sharding = "replicas",
    dtype: torch.dtype = torch.float64,
) -> list[Any]:
    """Compute two steps' gradients of a batch with an unreadable image."""
    config = dataclasses.replace(model_config(name, 5, 16), **changes)
    model = build_model(config, torch.Generator().manual_seed(0)).to(dtype).train()
    for parameter in model.parameters():  # a head of zeros would leave nothing to compare
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (BATCH, 3, 16, 16), dtype=torch.uint8, generator=generator)
    mask = torch.arange(BATCH) != 3
    whole = Batch(images, {"labels": torch.arange(BATCH) % 5}, mask, torch.arange(BATCH))
    loss = ClassificationConfig(**objective)
    places = torch.from_numpy(places_of(divide(BATCH, 5, world), loss.mixes))
    own = whole._each(lambda tensor: tensor[places])
    if sharding != "replicas":
        shard(model, world, sharding, "float32")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    made = Gradients(model, Double(loss), optimizer, torch.enable_grad, 2, CONFIG, loss.mixes, world)
    steps = []
    for step in range(2):
        totals = made.compute(own, step)
        assert model.batch_rows is None  # whoever goes on with the model gives it whole batches
        grads = [None if p.grad is None else collect(p.grad).clone() for p in model.parameters()]
        steps.append(({name: value.item() for name, value in totals.items()}, grads))
    return steps


class Double(Classification):
    """Classification of five classes."""

    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__(config, 5)


MODELS: dict[str, dict[str, Any]] = {
    "ViT-16x2x2/4": {"drop_path": 0.5},
    "R1-1x0.5+ViT-16x2x2/8": {"drop_path": 0.5},
    "BiT-R1-1x0.5": {},
    "Axial-ViT-16x2x2/4": {},
}


OBJECTIVE = {"mixup": 0.5, "cutmix": 1.0, "label_smoothing": 0.1}
"""Everything that is drawn for a whole batch, with branches that are skipped."""


END = 12


def has_reached(trainer: Trainer, step: int) -> bool:
    return trainer.state.progress.step == step
