"""Training by several processes against training by one."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.helpers.gradients import END, MODELS, OBJECTIVE, gradients_of, has_reached
from tests.helpers.noise_samples import AUGMENTATION, PREPROCESSING, Noise
from tests.helpers.processes import Processes
from tests.training.small_run import TRAINING, fingerprint, small_trainer
from vitkit.data.stream.loader import Batch, TrainLoader, evaluation_batches
from vitkit.evaluation.run_model import predict
from vitkit.runs.trained_model import DataRecord, RejectedFiles
from vitkit.training.checkpoint import survey
from vitkit.training.config import TrainingConfig
from vitkit.training.gradients import Gradients, divide, places_of
from vitkit.world import World


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(3) as started:
        yield started


@given(st.data(), st.integers(1, 10**6), st.integers(1, 1024))
def test_every_image_of_a_large_batch_is_one_process_s(data: st.DataObject, count: int, size: int) -> None:
    micro = data.draw(st.integers(-(-count // 3), count))
    shares = [divide(count, micro, World(rank, size), with_empty=True) for rank in range(size)]
    for part in range(-(-count // micro)):
        of_part = [mine[part] for mine in shares]
        assert all(share.part == part and share.offset == part * micro for share in of_part)
        ends = [0, *(share.stop for share in of_part)]
        assert [share.start for share in of_part] == ends[:-1]  # one after the other, none twice
        assert ends[-1] == of_part[0].total == min(micro, count - part * micro)


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


def all_gradients(world: World, names: tuple[str, ...], dtype: torch.dtype) -> list[Any]:
    return [gradients_of(world, name, MODELS[name], OBJECTIVE, dtype=dtype) for name in names]


@pytest.mark.parametrize(
    ("names", "dtype", "near"),
    [
        (("ViT-16x2x2/4",), torch.float64, 1e-12),
        pytest.param(tuple(MODELS)[1:], torch.float64, 1e-12, marks=pytest.mark.slow),
        pytest.param(tuple(MODELS), torch.float32, 1e-5, marks=pytest.mark.slow),
    ],
    ids=["ViT", "others", "float32"],
)
def test_gradients_are_those_of_one_process(
    processes: Processes, names: tuple[str, ...], dtype: torch.dtype, near: float
) -> None:
    alone = all_gradients(World(), names, dtype)
    for size in (2, 3):
        several = processes.run(size, all_gradients, names, dtype)
        for number, name in enumerate(names):
            for step, (totals, grads) in enumerate(alone[number]):
                for process in several:
                    others, theirs = process[number][step]
                    assert others == pytest.approx(totals, rel=1e-6), name
                    for mine, other, first in zip(grads, theirs, several[0][number][step][1], strict=True):
                        assert (mine is None) == (other is None)
                        if mine is not None:
                            difference = float((mine - other).norm())
                            assert difference <= near * float(mine.norm()) + 1e-3 * near, name
                            assert torch.equal(other, first)  # all processes have the same bits


def train_parts(world: World, run: Path, *stops: int) -> tuple[list[float], dict[str, str] | None]:
    """Train to each of these steps, every time from the last checkpoint; returns losses and bits."""
    training = dataclasses.replace(TRAINING, batch_size=7, micro_batch_size=4, checkpoint_every=100)
    losses = list[float]()
    for stop in stops:
        trainer = small_trainer(run, training, dropout=0.0, drop_path=0.3, bad=frozenset({5}), world=world)
        checkpoint = survey(run).whole
        if checkpoint is not None:
            trainer.resume(checkpoint)
        losses += [report.loss for report in trainer.fit(partial(has_reached, trainer, stop))]
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
    gradients = Gradients(
        model, Sum(), optimizer, torch.enable_grad, 1, TrainingConfig(batch_size=2), world=world
    )
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


def all_predictions(world: World, size: int) -> list[Any]:
    """Predict data sets of several sizes, in batches of four images, some of which cannot be read."""
    weights = torch.linspace(-1, 1, 8 * 8 * 3 * 7).view(-1, 7)
    model = Pixels(weights)
    predictions = []
    for count in (1, 4, 21):
        samples, rejects = Noise(count, bad=frozenset({2, 20})), dict[str, str]()
        batches = evaluation_batches(samples, PREPROCESSING, size, rejects=rejects, world=world)
        made = predict(model, batches, world=world)
        predictions.append([made.logits[:], made.labels, made.ids, made.bad, sorted(rejects)])
    return predictions


class Pixels(nn.Module):
    """A linear function of the pixels."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.weights: torch.Tensor
        self.register_buffer("weights", weights)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.float().flatten(1) @ self.weights


def test_every_image_is_evaluated_once_and_all_processes_have_the_same_bits(processes: Processes) -> None:
    alone = all_predictions(World(), 4)
    for size in (2, 3):
        several = processes.run(size, all_predictions, 4)
        for number, expected in enumerate(alone):
            for mine in several:
                for part, other in zip(expected[:4], mine[number][:4], strict=True):
                    np.testing.assert_array_equal(part, other)
            # Each file that cannot be read was met by one process.
            assert sorted(name for mine in several for name in mine[number][4]) == expected[4]


def share_rejected(world: World, folder: Path) -> list[dict[str, str]]:
    record = DataRecord("d", "d", "d", (), {}, (), {"train": {"old.png": "cut short"}}, "0", {})
    rejects, shared = RejectedFiles(folder, record), []
    for step in range(3):
        if step == world.rank:  # in each step another process meets one, in the last one nobody does
            rejects.of_split["train"][f"{step}.png"] = f"met by {world.rank}"
        rejects.share(world)
        shared.append(dict(rejects.of_split["train"]))
    return shared


def test_files_that_one_process_cannot_read_count_for_all(processes: Processes, tmp_path: Path) -> None:
    first, second = processes.run(2, share_rejected, tmp_path)
    assert first == second
    assert [sorted(files) for files in first] == [
        ["0.png", "old.png"],
        ["0.png", "1.png", "old.png"],
        ["0.png", "1.png", "old.png"],
    ]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_images_order_and_pixels_are_those_of_one_process(workers: int) -> None:
    """Over three epochs, in which the number of processes changes five times."""
    samples, batch_size, micro = Noise(23), 9, 5

    def read(world: World, start: int, stop: int) -> dict[tuple[int, int], tuple[int, bytes]]:
        places = places_of(divide(batch_size, micro, world), mixes=False)
        loader = TrainLoader(
            samples,
            PREPROCESSING,
            AUGMENTATION,
            batch_size=batch_size,
            seed=3,
            workers=workers,
            places=places,
        )
        return {
            (step, place): (int(index), pixels.numpy().tobytes())
            for step, batch in enumerate(loader.batches(start, stop), start)
            for place, index, pixels in zip(places.tolist(), batch.ids, batch.images, strict=True)
        }

    alone, several = read(World(), 0, 8), dict[tuple[int, int], tuple[int, bytes]]()
    assert len(alone) == 8 * batch_size > 3 * len(samples)
    for start, stop, size in ((0, 1, 2), (1, 3, 3), (3, 4, 1), (4, 6, 3), (6, 7, 2), (7, 8, 4)):
        for rank in range(size):
            part = read(World(rank, size), start, stop)
            assert not part.keys() & several.keys()
            several |= part
    assert several == alone
