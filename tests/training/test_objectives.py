"""Losses by hand."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tests.helpers.centred_objective import Centred
from tests.helpers.random_models import TINY, model_with_random_head
from tests.helpers.refusals import refused
from tests.training.small_run import OPTIMIZER, TRAINING, small_trainer
from vitkit.data.stream.loader import Batch
from vitkit.tasks.learning import MULTI_LABEL
from vitkit.training.checkpoint import step_name
from vitkit.training.config import ClassificationConfig
from vitkit.training.evaluators import Evaluator
from vitkit.training.objectives import Classification, MultiLabel, cutmix, mix, mixup
from vitkit.training.trainer import Trainer
from vitkit.weights.files.source import read_safetensors


class Fixed(nn.Module):
    """Answers with given logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


LOGITS = torch.tensor([[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [1.0, 1.0, 5.0]])


LABELS = torch.tensor([0, 1, 0])


SETS = torch.tensor([[True, True, False], [False, False, False], [True, False, True]])


def loss_of(
    config: ClassificationConfig,
    mask: Sequence[bool] = (True, True, True),
    logits: Tensor = LOGITS,
    several: bool = False,
    counts: NDArray[np.int64] | None = None,
    train: bool = True,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """Compute a loss and its metrics; `counts`: the labels of the training images."""
    targets = {"labels": SETS if several else LABELS}
    images = torch.zeros(3, 3, 2, 2, dtype=torch.uint8)
    batch = Batch(images, targets, torch.tensor(mask), torch.arange(3))
    objective = MultiLabel(config) if several else Classification(config, 3, counts)
    loss, metrics = objective.forward(Fixed(logits).train(train), batch, 0, 1)
    return loss, metrics


def yes_or_no(targets: Tensor) -> Tensor:
    """Sum over the classes of each image."""
    return F.binary_cross_entropy_with_logits(LOGITS, targets.float(), reduction="none").sum(1)


def test_losses_are_pytorchs() -> None:
    smoothed = torch.tensor([[0.9, 0.9, 0.1], [0.1, 0.1, 0.1], [0.9, 0.1, 0.9]])
    smoothing = ClassificationConfig(label_smoothing=0.2)
    loss, metrics = loss_of(ClassificationConfig())
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS, LABELS))
    assert metrics["accuracy"].item() == pytest.approx(2 / 3)
    torch.testing.assert_close(loss_of(smoothing)[0], F.cross_entropy(LOGITS, LABELS, label_smoothing=0.2))
    one_each = loss_of(ClassificationConfig(loss="sigmoid"))[0]
    torch.testing.assert_close(one_each, yes_or_no(F.one_hot(LABELS, 3)).mean())
    loss, metrics = loss_of(ClassificationConfig(), several=True)
    torch.testing.assert_close(loss, yes_or_no(SETS).mean())
    # Yes from a logit of 0 on: wrong are one label of the first image, all of the second, one of the third.
    assert metrics["hamming_loss"].item() == pytest.approx(5 / 9)
    torch.testing.assert_close(loss_of(smoothing, several=True)[0], yes_or_no(smoothed).mean())


def test_what_is_masked_does_not_count_not_even_if_it_is_infinite() -> None:
    broken = LOGITS.clone()
    broken[1] = torch.tensor([float("inf"), float("nan"), 0.0])
    loss, metrics = loss_of(ClassificationConfig(), [True, False, True], broken)
    torch.testing.assert_close(loss, F.cross_entropy(LOGITS[[0, 2]], LABELS[[0, 2]]))
    assert metrics["accuracy"].item() == 0.5
    loss, metrics = loss_of(ClassificationConfig(), [True, False, True], broken, several=True)
    torch.testing.assert_close(loss, yes_or_no(SETS)[[0, 2]].mean())
    assert metrics["hamming_loss"].item() == pytest.approx(2 / 6)
    assert loss_of(ClassificationConfig(), [False] * 3)[0].item() == 0


def test_mixup_mixes_images_and_targets_alike() -> None:
    torch.manual_seed(0)
    images = torch.arange(3.0)[:, None, None, None].expand(3, 3, 2, 2)
    targets = torch.eye(3)
    mixed, soft = mixup(images, targets, torch.tensor([True, True, False]), alpha=1.0)
    share = soft[1, 1].item()
    assert 0.5 <= share < 1
    torch.testing.assert_close(soft[1], torch.tensor([1 - share, share, 0.0]))
    torch.testing.assert_close(mixed[1], torch.full((3, 2, 2), share * 1))
    assert torch.equal(soft[0], targets[0])  # its neighbour is the unreadable one
    torch.testing.assert_close(soft.sum(1), torch.ones(3))


def test_the_own_image_is_always_the_larger_part() -> None:
    images = torch.arange(2.0)[:, None, None, None].expand(2, 1, 2, 2)
    shares, drawn = [], []
    for seed in range(64):
        torch.manual_seed(seed)
        drawn.append(torch.distributions.Beta(0.8, 0.8).sample().item())
        torch.manual_seed(seed)
        mixed, soft = mixup(images, torch.eye(2), torch.tensor([True, True]), alpha=0.8)
        shares.append(soft[1, 1].item())
        torch.testing.assert_close(mixed[1], torch.full((1, 2, 2), shares[-1]))
    assert min(drawn) < 0.2 and max(drawn) > 0.8  # the draws fall on both sides
    assert shares == pytest.approx([max(share, 1 - share) for share in drawn])


def numbered_batch(count: int, size: tuple[int, int] = (12, 16)) -> Batch:
    """Images of one level each, its number in the batch."""
    images = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, 3, *size)
    return Batch(
        images, {"labels": torch.arange(count)}, torch.ones(count, dtype=torch.bool), torch.arange(count)
    )


def test_cutmix_shares_targets_by_the_area_of_its_box() -> None:
    shares = []
    for seed in range(50):
        torch.manual_seed(seed)
        batch = numbered_batch(3)
        batch.mask[1] = False
        mixed, soft = cutmix(batch.images, torch.eye(3), batch.mask, alpha=1.0)
        assert mixed.dtype == torch.uint8
        assert torch.equal(mixed[2], batch.images[2]) and torch.equal(soft[2], torch.eye(3)[2])
        replaced = mixed[0, 0] == 2  # by the last image, which is the neighbour of the first
        shares.append(replaced.float().mean().item())
        torch.testing.assert_close(soft[0], torch.tensor([1 - shares[-1], 0.0, shares[-1]]))
        rows, columns = replaced.any(1).sum(), replaced.any(0).sum()
        assert replaced.sum() == rows * columns  # one box
        assert torch.equal(mixed[0, 0], mixed[0, 1])  # of all channels
    assert min(shares) < 0.1 and max(shares) > 0.6


def test_a_batch_is_mixed_in_one_of_two_ways() -> None:
    model = model_with_random_head(TINY).train()
    both, ways = ClassificationConfig(mixup=1.0, cutmix=1.0), set()
    for seed in range(20):
        torch.manual_seed(seed)
        images, soft = mix(model, numbered_batch(4), lambda labels: torch.eye(4), both)
        ways.add(images.dtype)  # mixup needs floats, boxes stay bytes
        torch.testing.assert_close(soft.sum(1), torch.ones(4))
    assert ways == {torch.uint8, torch.float32}
    torch.manual_seed(1)
    images, soft = mix(model.eval(), numbered_batch(4), lambda labels: torch.eye(4), both)
    assert torch.equal(images, numbered_batch(4).images) and torch.equal(soft, torch.eye(4))


@pytest.mark.parametrize("way", ["mixup", "cutmix"])
@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "labels"])
def test_mixed_images_and_their_labels_reach_every_loss(loss: str, way: str) -> None:
    """Mixup is of pixels that the model has normalised; nothing is mixed in evaluation."""
    model, batch = model_with_random_head(TINY).train(), numbered_batch(4)
    labels = torch.tensor(
        [[1, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.bool
    )
    targets = F.one_hot(batch.labels, 5).float()
    options: dict[str, Any] = {way: 1.0, "loss": "sigmoid" if loss == "sigmoid" else "softmax"}
    config = ClassificationConfig(**options)
    objective: nn.Module = Classification(config, 5)
    if loss == "labels":
        batch, targets = replace(batch, targets={"labels": labels}), labels.float()
        objective = MultiLabel(config)
    torch.manual_seed(6)
    computed, _ = objective(model, batch, 0, 1)
    torch.manual_seed(6)
    if way == "mixup":
        images, soft = mixup((batch.images.float() - 127.5) / 127.5, targets, batch.mask, 1.0)
    else:
        images, soft = cutmix(batch.images, targets, batch.mask, 1.0)
    assert not torch.equal(soft, targets)
    logits = model(images)
    if loss == "softmax":
        expected = F.cross_entropy(logits, soft)
    else:
        expected = F.binary_cross_entropy_with_logits(logits, soft, reduction="none").sum(1).mean()
    torch.testing.assert_close(computed, expected)
    unmixed, _ = objective(model.eval(), batch, 0, 1)
    assert unmixed.item() != computed.item()


# Classes of unlike size: logit adjustment and class weights

BOTH = (ClassificationConfig(logit_adjustment=1.0), ClassificationConfig(class_weights="balanced"))

COUNTS = np.array([0] * 6 + [1] * 3 + [2])
"""Training labels: 6, 3 and 1 of ten."""


def test_adjustment_adds_tau_times_the_log_of_the_shares_in_training_alone() -> None:
    shares = torch.tensor([0.6, 0.3, 0.1])
    for tau in (1.0, 0.5):
        config = ClassificationConfig(logit_adjustment=tau)
        adjusted, plain = (loss_of(config, counts=COUNTS, train=train)[0] for train in (True, False))
        torch.testing.assert_close(adjusted, F.cross_entropy(LOGITS + tau * shares.log(), LABELS))
        torch.testing.assert_close(plain, F.cross_entropy(LOGITS, LABELS))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_balanced_weights_let_every_class_count_alike(kind: str) -> None:
    config = ClassificationConfig(loss=kind, class_weights="balanced")  # type: ignore[arg-type]
    objective = Classification(config, 3, COUNTS)
    weights = objective.class_weights
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([10 / 18, 10 / 9, 10 / 3]))
    assert weights[COUNTS].mean().item() == pytest.approx(1)  # the learning rate means what it meant
    targets = F.one_hot(LABELS, 3).float()
    if kind == "softmax":
        losses = F.cross_entropy(LOGITS, LABELS, reduction="none")
    else:
        losses = F.binary_cross_entropy_with_logits(LOGITS, targets, reduction="none").sum(1)
    torch.testing.assert_close(loss_of(config, counts=COUNTS)[0], (losses * weights[LABELS]).mean())


def test_a_class_without_training_images_breaks_nothing_and_labels_are_asked_for() -> None:
    for config in BOTH:
        assert loss_of(config, counts=np.array([0, 0, 1]))[0].isfinite()
        refused("labels of the training images", Classification, config, 3)
        refused("multi-label", MULTI_LABEL.learned, config)


def test_what_follows_from_the_labels_is_kept_and_nothing_where_nothing_is_asked() -> None:
    assert list(Classification(BOTH[0], 3, COUNTS).state_dict()) == ["log_prior"]
    assert not Classification(ClassificationConfig(), 3, COUNTS).state_dict()  # checkpoints stay as they were


# Objectives with parameters and state of their own: trained, kept, refused where they do not belong


def centred(run: Path, **changes: object) -> Trainer:
    return small_trainer(run, objective=Centred(), **changes)  # type: ignore[arg-type]


def test_it_is_told_the_step_and_called_once_after_it_and_kept_apart_from_the_weights(tmp_path: Path) -> None:
    """The first step is number 0; the calls are two, one for each micro-batch."""
    trainer = centred(tmp_path, training=dataclasses.replace(TRAINING, micro_batch_size=4))
    list(trainer.fit())
    last = tmp_path / "checkpoints" / step_name(12)
    tensors = read_safetensors(last / "objective.safetensors")
    assert tensors.keys() == {"project.weight", "project.bias", "centre", "calls", "updates", "schedule"}
    assert [tensors[name] for name in ("calls", "updates", "schedule")] == [24, 12, 11 * 100 + 12]
    assert tensors["centre"].abs().min() > 0
    for name in ("model.safetensors", "average.safetensors"):
        assert read_safetensors(last / name).keys() == trainer.state.model.state_dict().keys()


def test_the_average_covers_it_and_evaluators_are_given_that(tmp_path: Path) -> None:
    seen: list[tuple[nn.Module, nn.Module]] = []

    def look(model: nn.Module, objective: nn.Module) -> dict[str, float]:
        seen.append((model, objective))
        return {}

    trainer = centred(tmp_path, others={"look": Evaluator(look)})
    for step, batch in enumerate(trainer.loader.batches(0, 3)):
        trainer.launch(batch, step, 0.1).read()
    averaged = trainer.evaluated_objective
    assert isinstance(averaged, Centred) and averaged is not trainer.objective
    own = trainer.objective.get_parameter("project.weight")
    assert not torch.equal(averaged.project.weight, own)
    assert averaged.calls == 3 and torch.equal(averaged.centre, trainer.objective.centre)  # type: ignore[arg-type]
    list(trainer.fit())
    average = trainer.state.average
    assert average is not None and seen == [(average, averaged)] * 3 and trainer.evaluated_model is average
    assert not torch.equal(average.get_parameter("head.weight"), trainer.state.model.head.weight)  # type: ignore
    plain = centred(tmp_path / "plain", optimizer=dataclasses.replace(OPTIMIZER, polyak=None))
    assert plain.evaluated_objective is plain.objective and plain.evaluated_model is plain.state.model


def test_its_parameters_are_trained_by_the_rules_of_the_models(tmp_path: Path) -> None:
    trainer = centred(tmp_path)
    objective = trainer.objective
    assert isinstance(objective, Centred)
    decayed, undecayed = (group["params"] for group in trainer.state.optimizer.param_groups)
    assert any(parameter is objective.project.weight for parameter in decayed)
    assert any(parameter is objective.project.bias for parameter in undecayed)
    numbers = trainer.launch(next(iter(trainer.loader.batches(0, 1))), 0, 0.1).read()
    gradients = [parameter.grad for parameter in [*trainer.state.model.parameters(), *objective.parameters()]]
    clipped = torch.nn.utils.get_total_norm([parameter for parameter in gradients if parameter is not None])
    assert numbers["grad_norm"] > 1 and clipped == pytest.approx(1.0, rel=1e-5)
    assert not torch.equal(objective.project.weight, torch.eye(5))


def test_a_checkpoint_of_another_objective_is_refused(tmp_path: Path) -> None:
    training = dataclasses.replace(TRAINING, steps=4)
    list(small_trainer(tmp_path / "plain", training).fit())
    list(centred(tmp_path / "centred", training=training).fit())
    plain, own = (tmp_path / name / "checkpoints" / step_name(4) for name in ("plain", "centred"))
    assert not (plain / "objective.safetensors").exists()
    new = tmp_path / "new"
    refused(r"holds no state of an objective .* ask for one\. Was config", centred(new).resume, plain)
    refused(r"holds a state of an objective .* options ask for none\.", small_trainer(new).resume, own)
    other = small_trainer(new, objective=Centred(6))
    refused("state of another objective than the run's options describe: size", other.resume, own)
    (own / "averaged_objective.safetensors").unlink()
    manifest = own / "manifest.json"
    listed = json.loads(manifest.read_text())
    del listed["files"]["averaged_objective.safetensors"]
    manifest.write_text(json.dumps(listed))
    refused(r"holds no Polyak average of the objective.* ask for one\. Was", centred(new).resume, own)
