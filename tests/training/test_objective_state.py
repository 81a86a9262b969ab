"""Objectives with parameters and state of their own: trained, kept, refused where they do not belong."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.helpers.centred_objective import Centred
from tests.training.small_run import OPTIMIZER, TRAINING, small_trainer
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import step_name
from vitkit.training.evaluators import Evaluator
from vitkit.training.trainer import Trainer
from vitkit.weights.files.source import read_safetensors


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
    checkpoints = {name: tmp_path / name / "checkpoints" / step_name(4) for name in ("plain", "centred")}
    assert not (checkpoints["plain"] / "objective.safetensors").exists()
    with pytest.raises(
        VitkitError, match=r"holds no state of an objective .* options ask for one\. Was config"
    ):
        centred(tmp_path / "new").resume(checkpoints["plain"])
    with pytest.raises(VitkitError, match=r"holds a state of an objective .* options ask for none\."):
        small_trainer(tmp_path / "new").resume(checkpoints["centred"])
    with pytest.raises(VitkitError, match="state of another objective than the run's options describe: size"):
        small_trainer(tmp_path / "new", objective=Centred(6)).resume(checkpoints["centred"])
    (checkpoints["centred"] / "averaged_objective.safetensors").unlink()
    manifest = checkpoints["centred"] / "manifest.json"
    listed = json.loads(manifest.read_text())
    del listed["files"]["averaged_objective.safetensors"]
    manifest.write_text(json.dumps(listed))
    with pytest.raises(
        VitkitError, match=r"holds no Polyak average of the objective.* options ask for one\. Was"
    ):
        centred(tmp_path / "new").resume(checkpoints["centred"])
