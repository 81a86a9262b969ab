"""Training by several processes, that have all weights or a part of them each, against training by one."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.evaluation.answers import Table
from tests.helpers.noise_samples import PREPROCESSING, Noise
from tests.helpers.processes import Processes
from tests.helpers.refusals import refused
from tests.training.small_run import OPTIMIZER, TRAINING, save_checkpoint, small_trainer
from vitkit.data.stream.loader import Batch, evaluation_batches
from vitkit.evaluation.run_model import predict
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import model_config
from vitkit.runs.trained_model import DataRecord, RejectedFiles
from vitkit.training.checkpoint import give_parts, survey
from vitkit.training.config import ClassificationConfig, Sharding, TrainingConfig
from vitkit.training.gradients import Gradients, collect, divide, places_of, shard
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer
from vitkit.world import World

END = 8
MODELS: dict[str, dict[str, Any]] = {
    "ViT-16x2x2/4": {"drop_path": 0.5},
    "R1-1x0.5+ViT-16x2x2/8": {"drop_path": 0.5},
    "BiT-R1-1x0.5": {},
    "Axial-ViT-16x2x2/4": {},
}


def gradients_of(
    world: World,
    name: str,
    sharding: Sharding = "replicas",
    dtype: torch.dtype = torch.float64,
    count: int = 7,
    micro: int = 5,
) -> list[Any]:
    """Compute two steps' gradients of a batch of `count` images, of which one is unreadable.

    In bfloat16, products alone are computed, as autocast does it.
    """
    config = TrainingConfig(batch_size=count, micro_batch_size=micro)
    is_rough = dtype == torch.bfloat16
    shape = dataclasses.replace(model_config(name, 5, 16), **MODELS[name])
    model = build_model(shape, torch.Generator().manual_seed(0)).train()
    model.to(torch.float32 if is_rough else dtype)
    for parameter in model.parameters():  # a head of zeros would leave nothing to compare
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(parameter.numel()))
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=generator)
    ids = torch.arange(count)
    whole = Batch(images, {"labels": ids % 5}, ids != 3, ids)
    loss = ClassificationConfig(mixup=0.5, cutmix=1.0, label_smoothing=0.1)
    places = torch.from_numpy(places_of(divide(count, micro, world), loss.mixes))
    own = whole._each(lambda tensor: tensor[places])
    if sharding != "replicas":
        shard(model, world, sharding, "bfloat16" if is_rough else "float32")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    context = partial(torch.autocast, "cpu", torch.bfloat16) if is_rough else torch.enable_grad
    objective = Classification(loss, 5)
    made = Gradients(model, objective, optimizer, context, 2, config, loss.mixes, world)
    steps = []
    for step in range(2):
        totals = made.compute(own, step)
        assert model.batch_rows is None  # whoever goes on with the model gives it whole batches
        grads = [None if p.grad is None else collect(p.grad).clone() for p in model.parameters()]
        steps.append(({name: value.item() for name, value in totals.items()}, grads))
    return steps


def sharded_gradients(
    world: World, names: Sequence[str], sharding: Sharding, machines: int, dtype: torch.dtype
) -> list[Any]:
    world = dataclasses.replace(world, on_machine=world.size // machines)
    return [gradients_of(world, name, sharding, dtype) for name in names]


@pytest.mark.parametrize(
    ("names", "size", "sharding", "machines", "dtype"),
    [
        (("ViT-16x2x2/4",), 3, "replicas", 1, torch.float64),
        (("ViT-16x2x2/4",), 3, "fsdp", 1, torch.float64),
        (("ViT-16x2x2/4",), 2, "hsdp", 2, torch.float64),
        *(
            pytest.param(tuple(MODELS), *rest, marks=pytest.mark.slow)
            for rest in (
                (3, "replicas", 1, torch.float64),
                (2, "replicas", 1, torch.float32),
                (2, "fsdp", 1, torch.float64),
                (3, "fsdp", 1, torch.float64),
                (3, "fsdp", 1, torch.float32),
                (2, "hsdp", 1, torch.float64),
            )
        ),
    ],
)
def test_gradients_are_those_of_one_process(
    processes: Processes,
    names: tuple[str, ...],
    size: int,
    sharding: Sharding,
    machines: int,
    dtype: torch.dtype,
) -> None:
    near = 1e-12 if dtype == torch.float64 else 1e-5
    several = processes.run(size, sharded_gradients, names, sharding, machines, dtype)
    for number, name in enumerate(names):
        for step, (totals, gradients) in enumerate(gradients_of(World(), name, dtype=dtype)):
            for of_process in several:
                others, theirs = of_process[number][step]
                assert others == pytest.approx(totals, rel=1e-6), name
                for mine, other, first in zip(gradients, theirs, several[0][number][step][1], strict=True):
                    assert (mine is None) == (other is None)
                    if mine is not None:
                        difference = float((mine - other).norm())
                        assert difference <= near * float(mine.norm()) + 1e-3 * near, name
                        assert torch.equal(other, first)  # all processes have the same bits


def uneven_machines(world: World) -> None:
    gradients_of(dataclasses.replace(world, on_machine=2), "ViT-16x2x2/4", "hsdp")


def test_hsdp_needs_as_many_processes_on_every_machine(processes: Processes) -> None:
    refused("hsdp needs the same number of processes on every machine", processes.run, 3, uneven_machines)


def sharded_trainer(
    world: World, run: Path, sharding: Sharding, options: Mapping[str, Any] | None = None
) -> Trainer:
    trainer = small_trainer(
        run,
        dataclasses.replace(TRAINING, batch_size=7, micro_batch_size=5, checkpoint_every=100),
        dataclasses.replace(OPTIMIZER, **(options or {})),
        dropout=0.0,
        drop_path=0.3,
        bad=frozenset({5}),
        world=world,
        sharding=sharding,
    )
    assert isinstance(trainer.state.model, ImageModel)
    trainer.state.model.recompute = "freeze_layers" in (options or {})
    return trainer


def hashes_of(world: World, run: Path) -> list[str]:
    """Hash the files of tensors of a run's last checkpoint, once process 0 has committed it."""
    world.total(0)
    checkpoint = survey(run).whole
    assert checkpoint is not None
    world.total(0)  # nobody goes on while others read
    return [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(checkpoint.glob("*.safetensors"))
    ]


def train_parts(
    world: World, run: Path, parts: Sequence[tuple[int, Sharding]], options: Mapping[str, Any] | None = None
) -> tuple[list[float], list[str]]:
    """Train to each of some steps, divided as named there, every time from the last checkpoint.

    Returns:
        The losses of all steps, and the hashes of the last checkpoint.
    """
    losses, hashes = list[float](), list[str]()
    for stop, sharding in parts:
        trainer = sharded_trainer(world, run, sharding, options)
        checkpoint = survey(run).whole
        if checkpoint is not None:
            trainer.resume(checkpoint)
        losses += [report.loss for report in trainer.fit(partial(has_reached, trainer, stop))]
        hashes = hashes_of(world, run)
    return losses, hashes


def has_reached(trainer: Trainer, step: int) -> bool:
    return trainer.state.progress.step == step


OPTIMIZERS: dict[str, tuple[Sharding, dict[str, Any]]] = {
    "replicas": ("replicas", {}),
    "adamw": ("fsdp", {"layer_decay": 0.8}),
    "adamw bfloat16": ("fsdp", {"optimizer": "adamw", "momentum_dtype": "bfloat16"}),
    "sgd": ("fsdp", {"optimizer": "sgd", "momentum_dtype": "bfloat16", "clip_norm": 0.1}),
    "frozen and recomputed": ("fsdp", {"freeze_layers": 1, "polyak": None}),
}


HEAVIER = ("adamw", "sgd")
"""Optimisers for the heavier tests: the others meet layers with rates of their own, and bfloat16, too."""


@pytest.mark.parametrize(
    ("sharding", "options"),
    [
        pytest.param(*each, id=name, marks=[pytest.mark.slow] if name in HEAVIER else [])
        for name, each in OPTIMIZERS.items()
    ],
)
def test_a_run_is_that_of_one_process(
    processes: Processes, tmp_path: Path, sharding: Sharding, options: dict[str, Any]
) -> None:
    """The sum of two numbers is the same in any order: a wrong order shows with three processes."""
    alone, _ = train_parts(World(), tmp_path / "alone", [(END, "replicas")], options)
    several = processes.run(3, train_parts, tmp_path / "several", [(END, sharding)], options)
    for losses, _ in several:
        assert losses == pytest.approx(alone, abs=1e-4)
    parts = [(2, sharding), (5, sharding), (END, sharding)]
    assert processes.run(3, train_parts, tmp_path / "stopped", parts, options) == several  # the same bits
    if sharding == "replicas":  # the number of processes may change
        run = tmp_path / "changed"
        changed = train_parts(World(), run, [(2, sharding)], options)[0]
        for size, stop in ((3, 4), (2, 6), (1, END)):
            changed += processes.run(size, train_parts, run, [(stop, sharding)], options)[0][0]
        assert changed == pytest.approx(alone, abs=1e-4)


def test_checkpoints_do_not_depend_on_how_processes_divide_the_state(
    processes: Processes, tmp_path: Path
) -> None:
    """Two processes, one, two; replicas, sharded, replicas: without a step between, the same bytes."""
    run = tmp_path / "run"
    first = processes.run(2, train_parts, run, [(3, "fsdp")])[0][1]
    before: Sharding = "fsdp"
    shardings: list[tuple[int, Sharding]] = [
        (3, "fsdp"),
        (1, "replicas"),
        (2, "replicas"),
        (2, "hsdp"),
        (2, "fsdp"),
    ]
    for size, sharding in shardings:
        again = processes.run(size, save_again, run, sharding)
        assert [hashes for hashes, _ in again] == [first] * size
        named = [line for line in again[0][1] if line.startswith("sharding")]
        expected = f"sharding was {before} and is now {sharding}: results may differ in the last bits."
        assert named == ([] if sharding == before else [expected])
        before = sharding
    losses = processes.run(3, train_parts, run, [(END, "fsdp")])[0][0]
    alone, _ = train_parts(World(), tmp_path / "alone", [(END, "replicas")])
    assert losses == pytest.approx(alone[3:], abs=1e-4)


def save_again(world: World, run: Path, sharding: Sharding) -> tuple[list[str], list[str]]:
    """Read the last checkpoint and write it once more; returns its hashes, and what differs from before."""
    world = dataclasses.replace(world, on_machine=1)
    trainer = sharded_trainer(world, run, sharding)
    checkpoint = survey(run).whole
    assert checkpoint is not None
    differences = trainer.resume(checkpoint)
    world.total(0)  # until all have read it
    if world.writes:
        save_checkpoint(run, trainer, 2)
    else:
        give_parts(trainer.state)
    return hashes_of(world, run), differences


def test_in_bfloat16_gradients_are_those_of_replicas(processes: Processes) -> None:
    replicas, sharded = (
        processes.run(2, gradients_of, "ViT-16x2x2/4", sharding, torch.bfloat16, 8, 8)
        for sharding in ("replicas", "fsdp")
    )
    for steps in sharded:
        for (_, gradients), (_, expected) in zip(steps, replicas[0], strict=True):
            assert all(torch.equal(mine, other) for mine, other in zip(gradients, expected, strict=True))


def order_of_sums(world: World) -> tuple[list[str], list[Any]]:
    """List when a sum over the processes begins and when the first parameter's gradient is there."""
    order: list[str] = []

    class Watched(World):
        def begin_adding(self, tensor: torch.Tensor) -> Callable[[], None]:
            order.append("sum")
            return super().begin_adding(tensor)

    model = build_model(model_config("ViT-16x1x1/4", 2, 8), torch.Generator().manual_seed(0)).train()
    first = next(model.parameters())
    first.register_post_accumulate_grad_hook(lambda parameter: order.append("gradient"))  # type: ignore[no-untyped-call]
    ids = torch.arange(2)
    whole = Batch(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), {"labels": ids}, ids >= 0, ids)
    own = whole._each(lambda tensor: tensor[torch.from_numpy(places_of(divide(2, None, world), mixes=False))])
    loss, optimizer = Classification(ClassificationConfig(), 2), torch.optim.SGD(model.parameters(), 0.1)
    watched, config = Watched(world.rank, world.size), TrainingConfig(batch_size=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.training.gradients.BUCKET_BYTES", 1)  # every parameter in a bucket of its own
        Gradients(model, loss, optimizer, nullcontext, 1, config, world=watched).compute(own, 0)
    return order, [p.grad for p in model.parameters()]


def test_gradients_are_summed_during_the_backward_pass(processes: Processes) -> None:
    (order, gradients), (other, _), (without_images, last) = processes.run(3, order_of_sums)
    assert order == other and order.index("gradient") > 10
    assert without_images == ["sum"] * len(gradients)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(gradients, last, strict=True))


def test_a_loss_with_parameters_is_not_divided(tmp_path: Path) -> None:
    trainer = partial(small_trainer, tmp_path, objective=nn.Linear(2, 2), sharding="fsdp")
    refused("parameters of a Linear cannot be sharded", trainer)


# How processes divide a batch, evaluate together and tell each other of files


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


def test_a_process_without_images_takes_part(processes: Processes) -> None:
    alone = gradients_of(World(), "ViT-16x2x2/4", count=2)
    for steps in processes.run(3, gradients_of, "ViT-16x2x2/4", "replicas", torch.float64, 2):
        for (totals, gradients), (expected, exact) in zip(steps, alone, strict=True):
            assert totals == pytest.approx(expected)
            for mine, other in zip(gradients, exact, strict=True):
                torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-15)


def all_predictions(world: World, size: int) -> list[Any]:
    """Predict data sets of several sizes, in batches of four images, some of which cannot be read."""
    model = Table(torch.randn(256, 7, generator=torch.Generator().manual_seed(0)))
    predictions = []
    for count in (1, 4, 21):
        samples, rejects = Noise(count, bad=frozenset({2, 20})), dict[str, str]()
        batches = evaluation_batches(samples, PREPROCESSING, size, rejects=rejects, world=world)
        made = predict(model, batches, world=world)
        predictions.append([made.logits[:], made.labels, made.ids, made.bad, sorted(rejects)])
    return predictions


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
    both = ["0.png", "1.png", "old.png"]
    assert [sorted(files) for files in first] == [["0.png", "old.png"], both, both]
