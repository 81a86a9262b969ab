"""A small run for the tests of training: random images, a tiny model, everything on."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers.random_models import TINY
from vitkit.data.stream.loader import Batch, sample_at
from vitkit.models.config import Compute, ViTConfig
from vitkit.models.vit import ViT
from vitkit.training.checkpoint import commit, make_folder, survey, take_snapshot
from vitkit.training.config import ClassificationConfig, OptimizerConfig, Sharding, TrainingConfig
from vitkit.training.evaluators import Evaluator, Monitor
from vitkit.training.gradients import divide, places_of
from vitkit.training.objectives import Classification
from vitkit.training.trainer import StepReport, Trainer
from vitkit.world import ALONE, World

NUM_SAMPLES = 40


class RandomImages:
    """A fixed set of random images in the stream's own order, of which a process reads some places."""

    def __init__(
        self, batch_size: int, bad: frozenset[int] = frozenset(), places: NDArray[np.int64] | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(5)
        self.images = torch.randint(0, 256, (NUM_SAMPLES, 3, 12, 16), dtype=torch.uint8, generator=generator)
        self.labels = torch.arange(NUM_SAMPLES) % 5
        self.batch_size, self.bad = batch_size, bad
        self.places = np.arange(batch_size) if places is None else places

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        for step in range(start, stop):
            positions = step * self.batch_size + self.places
            ids = torch.from_numpy(sample_at(positions, NUM_SAMPLES, 0)[1])
            mask = torch.tensor([int(i) not in self.bad for i in ids], dtype=torch.bool)
            yield Batch(self.images[ids], {"labels": self.labels[ids]}, mask, ids)


TRAINING = TrainingConfig(steps=12, batch_size=8, evaluate_every=4, checkpoint_every=4, log_every=3)
OPTIMIZER = OptimizerConfig(learning_rate=0.01, warmup_steps=2, polyak=0.9)


def small_trainer(
    run: Path,
    training: TrainingConfig = TRAINING,
    optimizer: OptimizerConfig = OPTIMIZER,
    values: tuple[float, ...] | None = None,
    validation_losses: tuple[float, ...] = (),
    bad: frozenset[int] = frozenset(),
    dropout: float = 0.1,
    drop_path: float = 0.0,
    mixup: float = 0.2,
    objective: nn.Module | None = None,
    others: Mapping[str, Evaluator] | None = None,
    device: str = "cpu",
    world: World = ALONE,
    sharding: Sharding = "replicas",
    architecture: ViTConfig | None = None,
    monitor: Monitor = Monitor("accuracy", "max", tie_breaker="loss"),  # noqa: B008 (it is frozen)
) -> Trainer:
    """`values`: what each validation is to find; left out, something the weights decide. `others`: evaluators
    besides the validation, which stand before it."""
    run.mkdir(parents=True, exist_ok=True)
    config = dataclasses.replace(architecture or TINY, dropout=dropout, drop_path=drop_path)
    model = ViT(config, generator=torch.Generator().manual_seed(1)).to(device)
    if training.precision == "bfloat16":
        model.chosen = Compute("bfloat16")
    accuracies, losses = iter(values or ()), iter(validation_losses)

    def evaluator(model: nn.Module, objective: nn.Module) -> dict[str, float]:
        weights = [value.sum().item() for value in model.state_dict().values()]
        return {"accuracy": next(accuracies) if values else sum(weights), "loss": next(losses, 1.0)}

    shares = divide(training.batch_size, training.micro_batch_size, world)
    return Trainer(
        run,
        model,
        objective or Classification(ClassificationConfig(mixup=mixup), 5),
        RandomImages(training.batch_size, bad, places_of(shares, mixup > 0)),
        NUM_SAMPLES,
        training,
        optimizer,
        {**(others or {}), "validation": Evaluator(evaluator)},
        monitor,
        mixes=mixup > 0,
        world=world,
        sharding=sharding,
    )


def fingerprint(trainer: Trainer) -> dict[str, str]:
    """SHA-256 of everything that a run ends with."""

    def digest(tensors: dict[str, Tensor]) -> str:
        whole = hashlib.sha256()
        for key, value in sorted(tensors.items()):
            whole.update(
                key.encode() + value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
        return whole.hexdigest()

    state = trainer.state
    moments = {
        f"{i}.{name}": value
        for i, (_, values) in enumerate(state.optimizer.state.items())
        for name, value in values.items()
    }
    return {
        "model": digest(state.model.state_dict()),
        "average": digest(state.average.state_dict() if state.average is not None else {}),
        "objective": digest(state.objective.state_dict()),
        "averaged objective": digest(getattr(state.averaged_objective, "state_dict", dict)()),
        "optimizer": digest({key: value.reshape(-1) for key, value in moments.items()}),
        "log": hashlib.sha256((trainer.run / "metrics.jsonl").read_bytes()).hexdigest(),
        "progress": str(state.progress),
    }


def fit(trainer: Trainer, stop: int = 0) -> list[StepReport]:
    """Train to the end, or leave the run after a step without a word of goodbye."""
    reports = []
    for report in trainer.fit():
        reports.append(report)
        if report.step == stop:
            break
    return reports


def trained(run: Path, steps: int, **options: Any) -> Trainer:
    """Train a new run to the end or to a step."""
    trainer = small_trainer(run, **options)
    fit(trainer, steps)
    return trainer


def resumed(run: Path, **options: Any) -> tuple[Trainer, list[str]]:
    """Go on from the newest whole checkpoint, if there is one; also returns what is said of that."""
    trainer, checkpoint = small_trainer(run, **options), survey(run).whole
    return trainer, [] if checkpoint is None else trainer.resume(checkpoint)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def save_checkpoint(run: Path, trainer: Trainer, keep: int) -> Path:
    """Commit a checkpoint of a trainer's state in a run folder."""
    make_folder(run)
    return commit(run, take_snapshot(trainer.state, trainer.environment), keep)


def flip(path: Path) -> None:
    """Damage a bit of a file."""
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def drift(model: torch.nn.Module, objective: torch.nn.Module) -> dict[str, float]:
    return {"distance": sum(value.double().sum().item() for value in model.state_dict().values())}
