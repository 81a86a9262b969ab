"""The loop: same bits however it was stopped, nothing lost, nothing silent."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.found_checkpoint import find_checkpoint
from tests.training.small_run import OPTIMIZER, TRAINING, fingerprint, small_trainer
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.training.config import ClassificationConfig, TrainingConfig
from vitkit.training.evaluators import Evaluator
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer


def finish(trainer: Trainer) -> dict[str, str]:
    list(trainer.fit())
    return fingerprint(trainer)


def log_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


VARIANTS = {
    "adamw": OPTIMIZER,
    "adamw, bfloat16 momentum": dataclasses.replace(OPTIMIZER, momentum_dtype="bfloat16"),
    "sgd, bfloat16 momentum": dataclasses.replace(
        OPTIMIZER, optimizer="sgd", momentum_dtype="bfloat16", polyak=None
    ),
}


@pytest.mark.parametrize("optimizer", VARIANTS.values(), ids=VARIANTS)
def test_stopped_after_every_step_it_ends_with_the_same_bits(tmp_path: Path, optimizer: Any) -> None:
    whole = finish(small_trainer(tmp_path / "whole", optimizer=optimizer))
    run = tmp_path / "stopped"
    for _ in range(30):
        trainer = small_trainer(run, optimizer=optimizer)
        checkpoint, rejected = find_checkpoint(run)
        assert not rejected
        if checkpoint is not None:
            assert trainer.resume(checkpoint) == []
        reports = list(trainer.fit(interrupted=lambda: True))
        assert len(reports) == 1
        if reports[0].finished:
            break
    assert trainer.state.progress.step == 12
    assert fingerprint(trainer) == whole
    last = Path("checkpoints") / "step-00000012"
    for file in (run / last).glob("*.safetensors"):  # the files too, not only what is in them
        assert file.read_bytes() == (tmp_path / "whole" / last / file.name).read_bytes()


def test_regularisation_draws_the_same_after_a_stop(tmp_path: Path) -> None:
    """CutMix and mixup in turn, stochastic depth and logit adjustment follow from the number of the step."""
    config = ClassificationConfig(mixup=0.2, cutmix=1.0, logit_adjustment=1.0)
    labels = np.array([0, 0, 0, 1, 2, 3, 4])

    def trainer(name: str, drop_path: float = 0.5) -> Trainer:
        objective = Classification(config, 5, labels)
        return small_trainer(tmp_path / name, drop_path=drop_path, objective=objective)

    whole = finish(trainer("whole"))
    assert finish(trainer("without", drop_path=0.0))["model"] != whole["model"]
    stopped = trainer("stopped")
    for report in stopped.fit():
        if report.step == 6:  # the last checkpoint is that of step 4
            break
    again = trainer("stopped")
    checkpoint, _ = find_checkpoint(tmp_path / "stopped")
    assert checkpoint is not None
    again.resume(checkpoint)
    assert finish(again) == whole


@settings(max_examples=8, deadline=None)
@given(stops=st.lists(st.integers(1, 11), max_size=4))
def test_abandoned_anywhere_it_ends_with_the_same_bits(
    stops: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a word of goodbye: what came after the last checkpoint is made again, in the log too."""
    base = tmp_path_factory.mktemp("runs")
    training = dataclasses.replace(TRAINING, checkpoint_every=5)
    whole = finish(small_trainer(base / "whole", training))
    for stop in [*stops, 99]:
        trainer = small_trainer(base / "stopped", training)
        checkpoint, _ = find_checkpoint(base / "stopped")
        if checkpoint is not None:
            trainer.resume(checkpoint)
        for report in trainer.fit():
            if report.step == stop:
                break
    assert fingerprint(trainer) == whole


def test_the_log_is_cut_and_measured_after_a_resume_that_writes_no_line(tmp_path: Path) -> None:
    """Stopped before the first line after a resume, the length that is noted must be that of the file."""
    training = dataclasses.replace(TRAINING, log_every=6, evaluate_every=1000, checkpoint_every=1000)
    whole = finish(small_trainer(tmp_path / "whole", training))
    run = tmp_path / "stopped"
    for stop, clean in ((3, True), (7, False), (4, True), (7, False), (99, False)):
        trainer = small_trainer(run, training)
        checkpoint, _ = find_checkpoint(run)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        progress = trainer.state.progress
        for report in trainer.fit(lambda: clean and trainer.state.progress.step >= stop):  # noqa: B023
            if report.step >= stop:
                break
        if clean:
            assert trainer.state.progress.log_bytes == (run / "metrics.jsonl").stat().st_size, progress
    assert fingerprint(trainer) == whole


def test_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    before = finish(small_trainer(tmp_path))
    again = small_trainer(tmp_path)
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    again.resume(checkpoint)
    assert finish(again) == before


def test_micro_batches_make_the_same_update(tmp_path: Path) -> None:
    whole = small_trainer(tmp_path / "one", dropout=0.0, mixup=0.0, bad=frozenset({3, 11}))
    training = dataclasses.replace(TRAINING, micro_batch_size=3)
    in_parts = small_trainer(tmp_path / "other", training, dropout=0.0, mixup=0.0, bad=frozenset({3, 11}))
    for trainer in (whole, in_parts):
        list(trainer.fit())
    logs = log_of(tmp_path / "one"), log_of(tmp_path / "other")
    for line, same in zip(*logs, strict=True):
        if line["kind"] == "train":
            assert line["loss"] == pytest.approx(same["loss"], abs=1e-5)
            assert line["grad_norm"] == pytest.approx(same["grad_norm"], rel=1e-3)
    for name, value in whole.state.model.state_dict().items():
        torch.testing.assert_close(value, in_parts.state.model.state_dict()[name], rtol=0, atol=5e-3)


def test_one_update_in_portions_is_one_update(tmp_path: Path) -> None:
    sgd = dataclasses.replace(OPTIMIZER, optimizer="sgd", weight_decay=0.0, polyak=None)
    weights = []
    for size in (8, 3, 1):
        training = dataclasses.replace(TRAINING, micro_batch_size=size)
        trainer = small_trainer(
            tmp_path / str(size), training, sgd, bad=frozenset({3, 11}), dropout=0.0, mixup=0.0
        )
        trainer.launch(next(iter(trainer.loader.batches(0, 1))), 0, 0.1).read()
        weights.append(torch.cat([value.flatten() for value in trainer.state.model.state_dict().values()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-6)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=1e-6)


def test_unreadable_images_count_for_nothing(tmp_path: Path) -> None:
    """A batch with masked images makes the gradient of the batch without them."""
    trainer = small_trainer(tmp_path, dropout=0.0, mixup=0.0)
    batch = next(iter(trainer.loader.batches(0, 1)))
    mask = torch.tensor([True, False] * 4)
    half = dataclasses.replace(batch, mask=mask)
    readable = dataclasses.replace(
        batch,
        images=batch.images[mask],
        targets={"labels": batch.labels[mask]},
        ids=batch.ids[mask],
        mask=mask[mask],
    )
    norms = [
        small_trainer(tmp_path / name, dropout=0.0, mixup=0.0).launch(b, 0, 0.0).read()
        for name, b in (("a", half), ("b", readable))
    ]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_the_log_says_what_happened_in_means_over_its_steps(tmp_path: Path) -> None:
    reports = list(small_trainer(tmp_path).fit())
    lines = log_of(tmp_path)
    train = [line for line in lines if line["kind"] == "train"]
    validation = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in train] == [3, 6, 9, 12]
    assert [line["step"] for line in validation] == [4, 8, 12]
    assert train[1]["loss"] == pytest.approx(sum(report.loss for report in reports[3:6]) / 3)
    assert train[1]["epoch"] == pytest.approx(6 * 8 / 40)
    assert {"loss", "accuracy", "grad_norm", "learning_rate"} <= train[0].keys()


def test_the_best_checkpoint_is_kept_with_the_last(tmp_path: Path) -> None:
    training = dataclasses.replace(TRAINING, steps=20, keep=1)
    trainer = small_trainer(tmp_path, training, values=(0.1, 0.9, 0.5, 0.5, 0.9))
    list(trainer.fit())
    assert trainer.state.progress.best_step == 8  # the first of two equals
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000008", "step-00000020"]


def test_between_equals_the_smaller_loss_is_best(tmp_path: Path) -> None:
    training = dataclasses.replace(TRAINING, steps=16)
    trainer = small_trainer(tmp_path, training, values=(1.0,) * 4, validation_losses=(0.9, 0.3, 0.5, 0.3))
    list(trainer.fit())
    assert trainer.state.progress.best_step == 8


def test_patience_ends_a_run_that_gets_no_better(tmp_path: Path) -> None:
    training = dataclasses.replace(TRAINING, steps=40, patience=2)
    trainer = small_trainer(tmp_path, training, values=(0.5, 0.4, 0.6, 0.6, 0.5, 0.9))
    reports = list(trainer.fit())
    assert reports[-1].step == 20 and reports[-1].finished
    assert trainer.state.progress.finished and trainer.state.progress.best_step == 12
    assert [line["step"] for line in log_of(tmp_path) if line["kind"] == "train"][-2:] == [18, 20]


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_stops_at_once_and_reaches_no_checkpoint(tmp_path: Path, where: str) -> None:
    trainer = small_trainer(tmp_path, dropout=0.0, mixup=0.0)
    reports = []
    ids: list[int] = []
    with pytest.raises(NonFiniteError) as caught:
        for report in trainer.fit():
            reports.append(report)
            if report.step == 5:
                ids = next(iter(trainer.loader.batches(5, 6))).ids.tolist()
                weight = trainer.state.model.get_parameter("head.weight")
                before = {k: v.clone() for k, v in trainer.state.model.state_dict().items()}
                if where == "loss":
                    with torch.no_grad():
                        weight[0, 0] = float("nan")
                    before["head.weight"][0, 0] = float("nan")
                else:
                    weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[no-untyped-call]
    assert len(reports) == 5
    message = str(caught.value)
    assert "Step 5" in message and "learning rate" in message
    assert message.endswith(f"{', '.join(map(str, ids[:5]))} and {len(ids) - 5} more.")
    after = trainer.state.model.state_dict()
    assert all(torch.equal(v.nan_to_num(), after[k].nan_to_num()) for k, v in before.items())  # not applied
    checkpoint, rejected = find_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.name == "step-00000004" and not rejected


def test_weights_that_overflow_reach_no_checkpoint(tmp_path: Path) -> None:
    """Loss and gradients of a step are finite, what the update makes of the weights is not."""
    trainer = small_trainer(tmp_path)
    update = trainer.state.optimizer.step

    def overflow() -> None:
        update()
        if trainer.state.progress.step == 7:
            trainer.state.model.get_parameter("head.bias").data[0] = float("inf")

    trainer.state.optimizer.step = overflow  # type: ignore[assignment]
    with pytest.raises(NonFiniteError, match="Step 7: the update made weights"):
        list(trainer.fit())
    checkpoint, rejected = find_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.name == "step-00000004" and not rejected


def test_out_of_memory_says_what_to_change(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)

    def hungry(model: Any, batch: Any, step: int, total_steps: int) -> Any:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to")

    trainer.objective.forward = hungry
    with pytest.raises(VitkitError, match=r"8 images of 12x16 at a time\..*micro_batch_size 4"):
        list(trainer.fit())

    def broken(model: Any, batch: Any, step: int, total_steps: int) -> Any:
        raise RuntimeError("something else")

    trainer.objective.forward = broken
    with pytest.raises(RuntimeError, match="something else"):
        list(trainer.fit())


def test_other_threads_are_said_at_resume(tmp_path: Path) -> None:
    list(small_trainer(tmp_path).fit(interrupted=lambda: True))
    checkpoint, _ = find_checkpoint(tmp_path)
    assert checkpoint is not None
    other = small_trainer(tmp_path)
    other.environment["threads"] = 77
    (sentence,) = other.resume(checkpoint)
    assert "threads" in sentence and "77" in sentence and "bits" in sentence


def test_epochs_and_intervals() -> None:
    config = TrainingConfig(epochs=2.5, batch_size=16)
    assert config.total_steps(100) == 16
    assert config.evaluation_interval(100) == 7
    assert TrainingConfig(epochs=1000, batch_size=16).evaluation_interval(100) == 125
    assert TrainingConfig(steps=3).total_steps(10**6) == 3
    for options, message in (
        ({"batch_size": 0}, "batch_size"),
        ({"epochs": 0.0}, "epochs"),
        ({"keep": 0}, "keep"),
        ({"epochs": float("nan")}, "epochs"),
        ({"patience": 0}, "patience"),
        ({"checkpoint_every": -5}, "checkpoint_every"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(VitkitError, match=message):
            TrainingConfig(**options)


def test_validation_sees_the_average_of_the_weights(tmp_path: Path) -> None:
    """And so does whoever asks the trainer for the model to use."""
    trainer = small_trainer(tmp_path)
    seen: list[dict[str, torch.Tensor]] = []

    def evaluator(model: torch.nn.Module, objective: torch.nn.Module) -> dict[str, float]:
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"accuracy": 0.5, "loss": 1.0}

    trainer.evaluators["validation"] = Evaluator(evaluator)
    list(trainer.fit())
    average, model = trainer.state.average, trainer.state.model
    assert average is not None and trainer.evaluated_model is average
    assert all(torch.equal(seen[-1][name], value) for name, value in average.state_dict().items())
    assert not torch.equal(seen[-1]["head.weight"], model.state_dict()["head.weight"])
    without = small_trainer(tmp_path / "without", optimizer=dataclasses.replace(OPTIMIZER, polyak=None))
    assert without.evaluated_model is without.state.model


def test_bfloat16_is_the_arithmetic_that_was_asked_for(tmp_path: Path) -> None:
    """Products of matrices are bfloat16, weights stay float32, and the loss differs in its last digits."""
    losses = {}
    for precision in ("float32", "bfloat16"):
        training = dataclasses.replace(TRAINING, precision=precision)
        trainer = small_trainer(tmp_path / precision, training, dropout=0.0, mixup=0.0)
        dtypes: list[torch.dtype] = []
        (layer,) = [m for name, m in trainer.state.model.named_modules() if name == "head"]
        layer.register_forward_hook(lambda _module, _inputs, output: dtypes.append(output.dtype))  # noqa: B023
        # The head begins with zeros, so that the first losses are the same.
        losses[precision] = [report.loss for report, _ in zip(trainer.fit(), range(5), strict=False)][-1]
        assert set(dtypes) == {getattr(torch, precision)}
        assert {p.dtype for p in trainer.state.model.parameters()} == {torch.float32}
    assert losses["bfloat16"] != losses["float32"]
    assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.05)


@pytest.mark.parametrize("options", [{"epochs": 1e38}, {"epochs": 1e20}, {"steps": 10**13}])
def test_a_run_without_an_end_is_refused_in_words(options: dict[str, Any]) -> None:
    with pytest.raises(VitkitError, match="more than 1,000,000,000,000 updates"):
        TrainingConfig(**options).total_steps(60)
