"""Training by several processes against training by one."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.helpers.processes import Processes
from tests.training.small_run import TRAINING, fingerprint, small_trainer
from vitkit.data.stream.batch import Batch
from vitkit.models.build import build_model
from vitkit.models.zoo import model_config
from vitkit.training.checkpoint import survey
from vitkit.training.config import ClassificationConfig
from vitkit.training.gradients import Gradients
from vitkit.training.objectives import Classification
from vitkit.training.parallel import divide, places_of
from vitkit.world import World

BATCH = 7


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(3) as started:
        yield started


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 64))
def test_every_image_of_a_batch_is_one_process_s(batch_size: int, micro: int, size: int) -> None:
    worlds = [World(rank, size) for rank in range(size)]
    shares = [divide(batch_size, micro, world) for world in worlds]
    places = np.concatenate([places_of(mine, mixes=False) for mine in shares])
    assert sorted(places.tolist()) == list(range(batch_size))
    assert len(shares[0]) == -(-batch_size // micro)  # process 0 has images of every micro-batch
    for part in range(len(shares[0])):
        counts = [len(share) for mine in shares for share in mine if share.part == part]
        assert max(counts) - (min(counts) if len(counts) == size else 0) <= 1


def test_the_image_before_is_read_once_more_where_images_are_mixed() -> None:
    places = [places_of(divide(10, 5, World(rank, 2)), mixes=True).tolist() for rank in range(2)]
    assert places == [[4, 0, 1, 2, 9, 5, 6, 7], [2, 3, 4, 7, 8, 9]]
    assert places_of(divide(10, 5, World()), mixes=True).tolist() == list(range(10))


def gradients_of(world: World, name: str, changes: dict[str, Any], objective: dict[str, Any]) -> list[Any]:
    """Compute two steps' gradients in float64, of a batch with an unreadable image."""
    config = dataclasses.replace(model_config(name, 5, 16), **changes)
    model = build_model(config, torch.Generator().manual_seed(0)).double().train()
    for parameter in model.parameters():  # a head of zeros would leave nothing to compare
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (BATCH, 3, 16, 16), dtype=torch.uint8, generator=generator)
    mask = torch.arange(BATCH) != 3
    whole = Batch(images, {"labels": torch.arange(BATCH) % 5}, mask, torch.arange(BATCH))
    loss = ClassificationConfig(**objective)
    places = torch.from_numpy(places_of(divide(BATCH, 4, world), loss.mixes))
    own = whole._each(lambda tensor: tensor[places])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    made = Gradients(model, Double(loss), optimizer, torch.enable_grad, 2, 0, BATCH, 4, loss.mixes, world)
    found = []
    for step in range(2):
        totals = made.compute(own, step)
        grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        found.append(({name: value.item() for name, value in totals.items()}, grads))
    return found


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


def all_gradients(world: World, names: tuple[str, ...], objective: dict[str, Any]) -> list[Any]:
    return [gradients_of(world, name, MODELS[name], objective) for name in names]


@pytest.mark.parametrize(
    "names",
    [("ViT-16x2x2/4",), pytest.param(tuple(MODELS)[1:], marks=pytest.mark.slow)],
    ids=["ViT", "others"],
)
def test_gradients_are_those_of_one_process(processes: Processes, names: tuple[str, ...]) -> None:
    """With everything that is drawn for a whole batch: mixup, CutMix, branches that are skipped."""
    objective = {"mixup": 0.5, "cutmix": 1.0, "label_smoothing": 0.1}
    alone = all_gradients(World(), names, objective)
    for size in (2, 3):
        several = processes.run(size, all_gradients, names, objective)
        for number, name in enumerate(names):
            for step, (totals, grads) in enumerate(alone[number]):
                for found in several:
                    others, theirs = found[number][step]
                    assert others == pytest.approx(totals, rel=1e-6), name
                    for mine, other, first in zip(grads, theirs, several[0][number][step][1], strict=True):
                        assert (mine is None) == (other is None)
                        if mine is not None:
                            assert float((mine - other).norm()) <= 1e-12 * float(mine.norm()) + 1e-15, name
                            assert torch.equal(other, first)  # all processes have the same bits


END = 12


def train_parts(world: World, run: Path, *stops: int) -> tuple[list[float], dict[str, str] | None]:
    """Train to each of these steps, every time from the last checkpoint; returns losses and bits."""
    training = dataclasses.replace(TRAINING, batch_size=7, micro_batch_size=4, checkpoint_every=100)
    losses = list[float]()
    for stop in stops:
        trainer = small_trainer(run, training, dropout=0.0, drop_path=0.3, bad=frozenset({5}), world=world)
        checkpoint = survey(run).whole
        if checkpoint is not None:
            trainer.resume(checkpoint)
        for report in trainer.fit(lambda: trainer.state.progress.step == stop):  # noqa: B023 (used at once)
            losses.append(report.loss)
        world.total(0)  # until process 0 has committed
    return losses, fingerprint(trainer) if world.writes else None


# The sum of two numbers is the same in any order: a wrong order shows with three processes.
@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_a_run_of_several_processes_is_that_of_one(processes: Processes, tmp_path: Path, size: int) -> None:
    alone, _ = train_parts(World(), tmp_path / "alone", END)
    several = processes.run(size, train_parts, tmp_path / "several", END)
    for losses, _ in several:
        assert losses == pytest.approx(alone, abs=1e-4)
    stopped = processes.run(size, train_parts, tmp_path / "stopped", 2, 9, END)
    assert stopped[0] == several[0]  # to the same bits


def test_the_number_of_processes_may_change(processes: Processes, tmp_path: Path) -> None:
    alone, _ = train_parts(World(), tmp_path / "alone", END)
    run = tmp_path / "changed"
    losses = train_parts(World(), run, 2)[0]
    for size, stop in ((3, 5), (2, 9)):
        losses += processes.run(size, train_parts, run, stop)[0][0]
    losses += train_parts(World(), run, END)[0]
    assert losses == pytest.approx(alone, abs=1e-4)


def few_images(world: World) -> list[Any]:
    """Compute the gradients of a batch of two images."""
    model = nn.Linear(4, 1, bias=False).double()
    nn.init.ones_(model.weight)
    images = torch.arange(2, dtype=torch.uint8)[:, None, None, None].expand(2, 1, 2, 2)
    whole = Batch(images, {}, torch.tensor([True, True]), torch.arange(2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    gradients = Gradients(model, Sum(), optimizer, torch.enable_grad, 1, 0, 2, world=world)
    places = torch.from_numpy(places_of(divide(2, None, world), mixes=False))
    totals = gradients.compute(whole._each(lambda tensor: tensor[places]), 0)
    assert model.weight.grad is not None
    return [totals["loss"].item(), model.weight.grad.tolist()]


class Sum(nn.Module):
    """The mean of a linear function of the pixels."""

    def forward(self, model: nn.Module, batch: Batch, step: int, total_steps: int) -> Any:
        return model(batch.images.double().flatten(1)).mean(), {}


def test_a_process_without_images_takes_part(processes: Processes) -> None:
    alone = few_images(World())
    assert processes.run(3, few_images) == [alone] * 3
