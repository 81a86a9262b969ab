"""The loop: same bits however it was stopped, nothing lost, nothing silent."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.centred_objective import Centred
from tests.helpers.random_models import TINY
from tests.helpers.refusals import refused
from tests.training.small_run import (
    OPTIMIZER,
    TRAINING,
    drift,
    fingerprint,
    fit,
    log_of,
    resumed,
    small_trainer,
    trained,
)
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.models.zoo import VIT5
from vitkit.training.checkpoint import Progress, survey
from vitkit.training.config import (
    ClassificationConfig,
    MAEConfig,
    MaskedPatchesConfig,
    OptimizerConfig,
    SimMIMConfig,
    TrainingConfig,
)
from vitkit.training.evaluators import Evaluator, Monitor, judge
from vitkit.training.objectives import Classification


def optimized(**changes: Any) -> dict[str, Any]:
    return {"optimizer": dataclasses.replace(OPTIMIZER, **changes)}


def regularised() -> dict[str, Any]:
    """CutMix and mixup in turn, stochastic depth and logit adjustment follow from the number of the step."""
    config = ClassificationConfig(mixup=0.2, cutmix=1.0, logit_adjustment=1.0)
    return {"drop_path": 0.5, "objective": Classification(config, 5, np.array([0, 0, 0, 1, 2, 3, 4]))}


CAREFUL = {"freeze_layers": 1, "layer_decay": 0.5}
BFLOAT16 = {"momentum_dtype": "bfloat16", **CAREFUL}
VARIANTS: dict[str, Callable[[], dict[str, Any]]] = {
    "adamw": lambda: {"others": {"drift": Evaluator(drift, every=3)}},
    "adamw, bfloat16 momentum, frozen layers": lambda: optimized(**BFLOAT16),
    "sgd, bfloat16 momentum, frozen layers": lambda: optimized(**BFLOAT16, optimizer="sgd", polyak=None),
    "muon, ViT-5": lambda: {**optimized(optimizer="muon"), "architecture": dataclasses.replace(TINY, **VIT5)},
    "objective with a state": lambda: {"objective": Centred()},
    "objective with a state, sgd": lambda: {**optimized(optimizer="sgd"), "objective": Centred()},
    "regularised": regularised,
}
"""Options of runs, made anew for every trainer: an objective has a state."""


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_stopped_after_every_step_it_ends_with_the_same_bits(
    tmp_path: Path, options: Callable[[], dict[str, Any]]
) -> None:
    whole = fingerprint(trained(tmp_path / "whole", 0, **options()))
    run = tmp_path / "stopped"
    for step in range(1, 13):
        trainer, sentences = resumed(run, **options())
        assert sentences == [] and not survey(run).damaged
        assert [report.step for report in trainer.fit(interrupted=lambda: True)] == [step]
    assert trainer.state.progress.finished and fingerprint(trainer) == whole
    last = Path("checkpoints") / "step-00000012"
    for file in (run / last).glob("*.safetensors"):  # the files too, not only what is in them
        assert file.read_bytes() == (tmp_path / "whole" / last / file.name).read_bytes()
    again, _ = resumed(run, **options())  # a finished run does nothing more
    assert fit(again) == [] and fingerprint(again) == whole


OFTEN: dict[str, Any] = {
    "training": dataclasses.replace(TRAINING, checkpoint_every=5),
    "others": {"drift": Evaluator(drift, every=3)},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fingerprint(trained(tmp_path_factory.mktemp("whole"), 0, **OFTEN))


@settings(max_examples=8, deadline=None)
@given(stops=st.lists(st.integers(1, 11), max_size=4))
def test_abandoned_anywhere_it_ends_with_the_same_bits(
    stops: list[int], whole: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a word of goodbye: what came after the last checkpoint is made again, in the log too."""
    run = tmp_path_factory.mktemp("runs")
    for stop in [*stops, 99]:
        trainer, _ = resumed(run, **OFTEN)
        fit(trainer, stop)
    assert fingerprint(trainer) == whole


def test_the_log_is_cut_and_measured_after_a_resume_that_writes_no_line(tmp_path: Path) -> None:
    """Stopped before the first line after a resume, the length that is noted must be that of the file."""
    training = dataclasses.replace(TRAINING, log_every=6, evaluate_every=1000, checkpoint_every=1000)
    whole = fingerprint(trained(tmp_path / "whole", 0, training=training))
    run = tmp_path / "stopped"
    for stop, clean in ((3, True), (7, False), (4, True), (7, False), (99, False)):
        trainer, _ = resumed(run, training=training)
        progress = trainer.state.progress
        for report in trainer.fit(lambda: clean and trainer.state.progress.step >= stop):  # noqa: B023
            if report.step >= stop:
                break
        if clean:
            assert trainer.state.progress.log_bytes == (run / "metrics.jsonl").stat().st_size, progress
    assert fingerprint(trainer) == whole


def test_one_update_in_portions_is_one_update(tmp_path: Path) -> None:
    sgd = dataclasses.replace(OPTIMIZER, optimizer="sgd", weight_decay=0.0, polyak=None)
    weights, numbers = [], []
    for size in (8, 3, 1):
        training = dataclasses.replace(TRAINING, micro_batch_size=size)
        trainer = small_trainer(
            tmp_path / str(size), training, sgd, bad=frozenset({3, 11}), dropout=0.0, mixup=0.0
        )
        numbers.append(trainer.launch(next(iter(trainer.loader.batches(0, 1))), 0, 0.1).read())
        weights.append(torch.cat([value.flatten() for value in trainer.state.model.state_dict().values()]))
    for other in (1, 2):
        torch.testing.assert_close(weights[other], weights[0], rtol=0, atol=1e-6)
        assert numbers[other] == pytest.approx(numbers[0], rel=1e-4)


def test_a_run_that_gets_no_better_ends_and_its_best_checkpoint_is_kept_with_the_last(tmp_path: Path) -> None:
    """Between equals the smaller loss is best. All evaluators measure at the end, though the validation that
    decides it stands last in the mapping."""
    trainer = small_trainer(
        tmp_path,
        dataclasses.replace(TRAINING, steps=40, patience=2, keep=2),
        values=(0.5, 0.4, 0.6, 0.6, 0.6, 0.5, 0.9),
        validation_losses=(1.0, 1.0, 0.9, 0.3, 0.3, 1.0),
        others={"drift": Evaluator(drift, every=1000)},
    )
    reports = fit(trainer)
    assert reports[-1].step == 24 and reports[-1].finished
    assert trainer.state.progress.finished and trainer.state.progress.best_step == 16
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-00000016", "step-00000020", "step-00000024"]
    lines = [(line["kind"], line["step"]) for line in log_of(tmp_path)]
    assert lines[-4:] == [("train", 21), ("train", 24), ("validation", 24), ("evaluation", 24)]


@pytest.mark.parametrize(
    ("select", "apart", "steps"), [("best", 10.0, [4, 12]), ("last", 10.0, [12]), ("last", 0.0, [4, 8, 12])]
)
def test_without_an_interval_checkpoints_are_seconds_apart_but_for_the_best(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    select: Literal["best", "last"],
    apart: float,
    steps: list[int],
) -> None:
    monkeypatch.setattr("vitkit.training.trainer.REGULAR_SECONDS", apart)
    training = dataclasses.replace(TRAINING, checkpoint_every=None, select=select, keep=9)
    fit(small_trainer(tmp_path, training, values=(0.5, 0.4, 0.3)))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == [f"step-{step:08}" for step in steps]


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
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


@pytest.mark.parametrize("name", ["head.bias", "project.bias", "centre"])
def test_weights_that_overflow_reach_no_checkpoint(tmp_path: Path, name: str) -> None:
    """Loss and gradients of a step are finite, what the update makes of model or objective is not."""
    trainer = small_trainer(tmp_path, objective=Centred())
    update = trainer.state.optimizer.step

    def overflow() -> None:
        update()
        if trainer.state.progress.step == 7:
            part = trainer.state.model if name == "head.bias" else trainer.objective
            part.state_dict()[name][0] = float("inf")

    trainer.state.optimizer.step = overflow  # type: ignore[assignment]
    with pytest.raises(NonFiniteError, match="Step 7: the update made weights"):
        list(trainer.fit())
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000004"]


def test_out_of_memory_says_what_to_change(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    for error, expected, message in (
        (RuntimeError("can't allocate memory: x"), VitkitError, r"8 images of 12x16 .*micro_batch_size 4"),
        (RuntimeError("something else"), RuntimeError, "something else"),
    ):

        def fail(*_: Any, error: Exception = error) -> Any:
            raise error

        trainer.objective.forward = fail
        with pytest.raises(expected, match=message):
            list(trainer.fit())


def test_other_threads_are_said_at_resume(tmp_path: Path) -> None:
    trained(tmp_path, 4)
    other, checkpoint = small_trainer(tmp_path), survey(tmp_path).whole
    assert checkpoint is not None
    other.environment["threads"] = 77
    (sentence,) = other.resume(checkpoint)
    assert "threads" in sentence and "77" in sentence and "bits" in sentence


def test_epochs_and_intervals() -> None:
    config = TrainingConfig(epochs=2.5, batch_size=16)
    assert config.total_steps(100) == 16
    assert config.evaluation_interval(100) == 7
    assert TrainingConfig(epochs=1000, batch_size=16).evaluation_interval(100) == 125
    assert TrainingConfig(steps=3).total_steps(10**6) == 3


NAN = float("nan")
OUT_OF_RANGE: list[tuple[Any, dict[str, tuple[float, ...]]]] = [
    (TrainingConfig, {"batch_size": (0,), "epochs": (0.0, NAN), "keep": (0,), "patience": (0,)}),
    (TrainingConfig, {"checkpoint_every": (-5,), "seed": (-1,)}),
    (OptimizerConfig, {"learning_rate": (0.0,), "clip_norm": (0.0,), "polyak": (1.0,), "head_rate": (0.0,)}),
    (OptimizerConfig, {"layer_decay": (0.0, 1.5), "freeze_layers": (-1,)}),
    (ClassificationConfig, {"label_smoothing": (1.0,), "mixup": (-1,), "cutmix": (-1,)}),
    (ClassificationConfig, {"logit_adjustment": (-1.0,)}),
    (MaskedPatchesConfig, {"mask_fraction": (1.0, NAN), "other_fraction": (-0.1,)}),
    (MAEConfig, {"mask_fraction": (0.0,), "decoder_depth": (0,)}),
    (SimMIMConfig, {"mask_block": (0,)}),
]
NOT_TOGETHER: list[tuple[str, Any, dict[str, Any]]] = [
    ("adamw", OptimizerConfig, {"optimizer": "adam", "weight_decay": 0.1}),
    ("muon .* in float32", OptimizerConfig, {"optimizer": "muon", "momentum_dtype": "bfloat16"}),
    ("weights balanced", ClassificationConfig, {"logit_adjustment": 1.0, "loss": "sigmoid"}),
    ("choose one", ClassificationConfig, {"logit_adjustment": 1.0, "class_weights": "balanced"}),
    ("together 1 at most", MaskedPatchesConfig, {"token_fraction": 0.8, "other_fraction": 0.3}),
    ("multiple of 4", MAEConfig, {"decoder_width": 18, "decoder_heads": 3}),
]


def test_options_that_make_no_sense_are_refused() -> None:
    for make, options in OUT_OF_RANGE:
        for name, values in options.items():
            for value in values:
                refused(name, make, **{name: value})
    for message, make, together in NOT_TOGETHER:
        refused(message, make, **together)
    for length in ({"epochs": 1e38}, {"epochs": 1e20}, {"steps": 10**13}):
        refused("more than 1,000,000,000,000 updates", TrainingConfig(**length).total_steps, 60)


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


# What is measured on the way, when, and which number decides what is best

ACCURACY = Monitor("accuracy", "max", tie_breaker="loss")


def test_each_evaluator_measures_at_its_own_interval_and_after_the_last_step(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path, others={"drift": Evaluator(drift, every=5)})
    reports = list(trainer.fit())
    lines = log_of(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "validation"] == [4, 8, 12]
    train = [line for line in lines if line["kind"] == "train"]
    assert [line["step"] for line in train] == [3, 6, 9, 12]
    assert train[1]["loss"] == pytest.approx(sum(report.loss for report in reports[3:6]) / 3)
    assert train[1]["epoch"] == pytest.approx(6 * 8 / 40)
    assert {"loss", "accuracy", "grad_norm", "learning_rate"} <= train[0].keys()
    others = [line for line in lines if line["kind"] == "evaluation"]
    evaluated = [(line["evaluator"], line["step"]) for line in others]
    assert evaluated == [("drift", 5), ("drift", 10), ("drift", 12)]
    assert others[0].keys() == {"kind", "evaluator", "step", "epoch", "distance"}
    measured = [sorted(report.measured) for report in reports if report.measured]
    assert measured == [["validation"], ["drift"], ["validation"], ["drift"], ["drift", "validation"]]
    accuracies = [line["accuracy"] for line in lines if line["kind"] == "validation"]
    assert trainer.state.progress.best_value == max(accuracies)


def test_without_a_monitor_nothing_is_best(tmp_path: Path) -> None:
    trainer = small_trainer(tmp_path)
    trainer.monitor = None
    list(trainer.fit())
    assert trainer.state.progress.best_step is None and len(log_of(tmp_path)) == 7


@pytest.mark.parametrize(
    ("monitor", "metrics", "best", "tie", "better"),
    [
        (ACCURACY, {"accuracy": 0.5, "loss": 1.0}, None, None, True),
        (ACCURACY, {"accuracy": 0.6, "loss": 9.0}, 0.5, 1.0, True),
        (ACCURACY, {"accuracy": 0.4, "loss": 0.1}, 0.5, 1.0, False),
        (ACCURACY, {"accuracy": 0.5, "loss": 0.9}, 0.5, 1.0, True),
        (ACCURACY, {"accuracy": 0.5, "loss": 1.0}, 0.5, 1.0, False),
        (ACCURACY, {"accuracy": NAN, "loss": 0.0}, None, None, False),
        (ACCURACY, {"accuracy": 0.5, "loss": NAN}, 0.5, 1.0, False),
        (Monitor("loss", "min"), {"loss": 0.5}, 0.6, None, True),
        (Monitor("loss", "min"), {"loss": 0.6}, 0.6, None, False),
        (Monitor("loss", "min"), {"loss": 0.7}, 0.6, None, False),
        (Monitor("loss", "min", "recall", "max"), {"loss": 0.6, "recall": 0.2}, 0.6, 0.1, True),
    ],
)
def test_what_is_better(
    monitor: Monitor, metrics: dict[str, float], best: float | None, tie: float | None, better: bool
) -> None:
    before = Progress(best_value=best, best_tie=tie, best_step=3 if best is not None else None)
    after = judge(monitor, metrics, 9, before)
    assert (after.best_step == 9) is better
    assert after.evaluations_since_best == (0 if better else 1)
    if not better:
        assert (after.best_value, after.best_tie) == (best, tie)


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="expects an evaluator named 'drift', found 'validation'"):
        small_trainer(tmp_path, monitor=dataclasses.replace(ACCURACY, evaluator="drift"))
    refused("to measure accuracy and loss, found distance", judge, ACCURACY, {"distance": 1.0}, 4, Progress())
    refused("every 1 or more steps, found 0", Evaluator, drift, every=0)
