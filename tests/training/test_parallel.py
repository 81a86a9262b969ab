"""How several processes divide a batch, evaluate together and tell each other of files."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.helpers.noise_samples import PREPROCESSING, Noise
from tests.helpers.processes import Processes
from vitkit.data.stream.loader import Batch, evaluation_batches
from vitkit.evaluation.run_model import predict
from vitkit.runs.trained_model import DataRecord, RejectedFiles
from vitkit.training.config import TrainingConfig
from vitkit.training.gradients import Gradients, divide, places_of
from vitkit.world import World


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
