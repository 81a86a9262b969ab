"""Training as on a GPU, played through on a processor: numbers that come late, memory that runs out.

None of it ran on CUDA here; the last test asks for that where there is a GPU.
"""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.helpers.refusals import refused
from tests.training.small_run import OPTIMIZER, TRAINING, fingerprint, small_trainer, trained
from vitkit.data.stream.loader import Batch
from vitkit.errors import NonFiniteError
from vitkit.training.config import ClassificationConfig, TrainingConfig
from vitkit.training.gradients import Gradients, Replayed
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer


class Cramped(Classification):
    """An objective that runs out of a GPU's memory with more images than fit, after it has counted a call."""

    images_seen: torch.Tensor

    def __init__(self, fitting: int) -> None:
        super().__init__(ClassificationConfig(), 5)
        self.fitting = fitting
        self.register_buffer("images_seen", torch.zeros(()))

    def forward(self, model: Any, batch: Any, step: int, total_steps: int) -> Any:
        self.images_seen.add_(len(batch))
        loss_and_metrics = super().forward(model, batch, step, total_steps)
        if len(batch) > self.fitting:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return loss_and_metrics


class ReadNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what a GPU would have to be waited for: numbers read, and shapes that depend on numbers."""

    waiting = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal", "is_nonzero")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])
        if name in self.waiting or by_mask:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def late(trainer: Trainer) -> Trainer:
    trainer.lag = 1
    return trainer


def test_numbers_that_come_a_step_later_change_no_bit(tmp_path: Path) -> None:
    at_once, later = small_trainer(tmp_path / "a"), late(small_trainer(tmp_path / "b"))
    later.state.model.eval()  # as it is loaded
    reports = list(at_once.fit()), list(later.fit())
    assert fingerprint(at_once) == fingerprint(later)
    losses = [[report.loss for report in run] for run in reports]
    # A log line and a checkpoint wait for the last numbers; between them a report has those of the step
    # before.
    assert losses[1][0] == losses[0][0] and losses[1][1] == losses[0][0]
    assert all(loss in losses[0][max(0, i - 1) : i + 1] for i, loss in enumerate(losses[1]))


def test_a_step_that_is_not_finite_is_not_applied_though_its_numbers_come_later(tmp_path: Path) -> None:
    trainer = late(small_trainer(tmp_path, dataclasses.replace(TRAINING, log_every=100)))
    batches = list(trainer.loader.batches(0, 4))
    first = trainer.launch(batches[0], 0, 0.1)
    weights = {name: value.clone() for name, value in trainer.state.model.state_dict().items()}
    batches[1] = dataclasses.replace(batches[1], images=batches[1].images.float().fill_(torch.nan))
    second, third = trainer.launch(batches[1], 1, 0.1), trainer.launch(batches[2], 2, 0.1)
    assert first.read()["loss"] > 0
    with pytest.raises(NonFiniteError, match="Step 1: loss nan"):
        second.read()
    assert third.read()["loss"] > 0
    for name, value in trainer.state.model.state_dict().items():
        assert torch.equal(value, weights[name])  # nor is any step after it


def test_a_run_stops_at_what_is_not_finite_before_a_checkpoint_holds_it(tmp_path: Path) -> None:
    trainer = late(small_trainer(tmp_path, optimizer=dataclasses.replace(OPTIMIZER, clip_norm=None)))
    taken = trainer.gradients.compute

    def broken(batch: Any, step: int) -> dict[str, torch.Tensor]:
        totals = taken(batch, step)
        return {**totals, "loss": totals["loss"] * torch.nan} if step == 5 else totals

    trainer.gradients.compute = broken  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="Step 5"):
        list(trainer.fit())
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004"]


def test_no_step_asks_the_gpu_for_a_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor also checks labels, and looks at the norm before clipping: both are left out here."""
    monkeypatch.setattr(F, "one_hot", lambda labels, count: (labels[:, None] == torch.arange(count)).long())
    trainer = late(
        small_trainer(tmp_path, optimizer=dataclasses.replace(OPTIMIZER, clip_norm=None), mixup=0.0)
    )
    batch = next(iter(trainer.loader.batches(0, 1)))
    trainer.launch(batch, 0, 0.1)
    with ReadNumbers() as reading:
        trainer.launch(batch, 1, 0.1)
    assert len(reading.waits) == 1, reading.waits  # the readable images, counted before they are sent
    with ReadNumbers() as reading:
        torch.ones(3)[torch.tensor([True, False, True])].sum().item()
    assert len(reading.waits) == 2


def test_passes_that_are_replayed_change_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in records: as in a CUDA graph, a pass reads the memory that it was recorded with."""
    replays: list[int] = []

    def record(whole: Any, sample: tuple[torch.Tensor]) -> Any:
        (memory,), plain = sample, whole.forward

        def replay(images: torch.Tensor) -> Any:
            assert images.shape == memory.shape
            replays.append(len(images))
            return plain(memory.copy_(images))

        whole.forward = replay
        return whole

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    plain, replayed = (small_trainer(tmp_path / name, dropout=0.0) for name in ("plain", "replayed"))
    model: Any = replayed.state.model
    images = next(iter(replayed.loader.batches(0, 1))).images.float()
    called = replayed.gradients.called = Replayed(model, [images.clone()])
    list(plain.fit())
    list(replayed.fit())
    assert fingerprint(plain) == fingerprint(replayed) and replays == [8] * 12
    called(images[:3])  # another size
    model.eval()
    called(images)
    assert len(replays) == 12
    failing = Mock(side_effect=RuntimeError("operation not permitted when stream is capturing\nCompile with"))
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", failing)
    refused("recorded as CUDA graphs: operation not permitted.*capturing. Leave", Replayed, model, [images])


def test_a_batch_that_does_not_fit_is_halved_and_the_update_is_the_same(tmp_path: Path) -> None:
    roomy, cramped = (small_trainer(tmp_path / str(n), dropout=0.0, objective=Cramped(n)) for n in (8, 2))
    reports = list(roomy.fit()), list(cramped.fit())
    assert [report.lowered_to for report in reports[1]] == [2] + [None] * 11
    assert all(report.lowered_to is None for report in reports[0])
    # Each image is counted once, and not again when the memory ran out.
    assert roomy.state.objective.images_seen == cramped.state.objective.images_seen == 12 * 8
    for name, value in roomy.state.model.state_dict().items():
        torch.testing.assert_close(value, cramped.state.model.state_dict()[name], rtol=0, atol=5e-3)
    refused("Out of memory with 1 images of 12x16", trained, tmp_path / "none", 0, objective=Cramped(0))


def test_recomputing_changes_no_bit_and_keeps_less(tmp_path: Path) -> None:
    plain, recomputed = (small_trainer(tmp_path / name, drop_path=0.2) for name in "ab")
    recomputed.state.model.recompute = True  # type: ignore[assignment]
    saved = []
    for trainer in (plain, recomputed):
        batch = next(iter(trainer.loader.batches(0, 1)))
        saved_bytes = 0

        def pack(value: torch.Tensor) -> torch.Tensor:
            nonlocal saved_bytes
            saved_bytes += value.nbytes
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            trainer.state.model(batch.images)
        saved.append(saved_bytes)
        list(trainer.fit())
    assert saved[1] < saved[0] / 2
    assert fingerprint(plain) == fingerprint(recomputed)


class Drawing(torch.nn.Module):
    """An objective that draws a number for each call, and whose loss is known for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def forward(self, model: torch.nn.Module, batch: Batch, step: int, total_steps: int) -> Any:
        self.drawn.append(torch.rand(()).item())
        losses = model(batch.images.float().mean((1, 2, 3), keepdim=True).flatten(1))[:, 0]
        return torch.where(batch.mask, losses, 0.0).sum() / batch.mask.sum().clamp(min=1), {}


def test_micro_batches_draw_apart_and_weigh_by_their_readable_images() -> None:
    """Each draws anew, at each step too; the gradient is that of the mean over all readable images."""
    images = torch.arange(6, dtype=torch.uint8)[:, None, None, None].expand(6, 3, 2, 2)
    mask = torch.tensor([True, False, True, True, False, False])
    batch = Batch(images, {}, mask, torch.arange(6))
    model, objective = torch.nn.Linear(1, 1), Drawing()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    config = TrainingConfig(batch_size=6, micro_batch_size=2)
    gradients = Gradients(model, objective, optimizer, nullcontext, 2, config)
    gradients.compute(batch, step=0)
    assert model.weight.grad is not None
    assert model.weight.grad.item() == pytest.approx((0 + 2 + 3) / 3)
    gradients.compute(batch, step=1)
    assert len(set(objective.drawn)) == 6


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
def test_a_step_makes_the_processor_wait_for_nothing(tmp_path: Path) -> None:
    config = dataclasses.replace(TRAINING, micro_batch_size=4)
    trainer = small_trainer(tmp_path, config, device="cuda")
    assert trainer.lag == 1
    batches = list(trainer.loader.batches(0, 4))
    trainer.launch(batches[0], 0, 0.1)  # allocates
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [trainer.launch(batch, step, 0.1) for step, batch in enumerate(batches[1:], start=1)]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert all(numbers.read()["loss"] > 0 for numbers in launched)
