"""One loop for any objective.

Whatever happens in step n follows from the weights, the optimiser's state and n alone: the batch is a
function of n, and so is the seed of all randomness in it. That is why a checkpoint needs no random state, and
why a run that was killed ends with the same bits as one that was not.
"""

import copy
import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitkit.config import to_json
from vitkit.data.loader import Batch
from vitkit.errors import VitkitError
from vitkit.models.compute_config import PLAIN, Compute
from vitkit.models.precision import autocast
from vitkit.training.checkpoint import (
    TrainState,
    environment,
    load_checkpoint,
    save_checkpoint,
)
from vitkit.training.checkpoint_files import Progress
from vitkit.training.metrics_log import MetricsLog, mend_log
from vitkit.training.objectives import Objective
from vitkit.training.optim import clip_gradients, create_optimizer, learning_rate, update_average
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig

LOG = "metrics.jsonl"

Evaluator = Callable[[nn.Module], Mapping[str, float]]


class Batches(Protocol):
    """Where training images come from: see `vitkit.data.loader.TrainLoader`."""

    def batches(self, start: int, stop: int) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class StepReport:
    """What happened in a step, for whoever watches."""

    step: int
    total_steps: int
    epoch: float
    loss: float
    learning_rate: float
    seconds: float
    """Of reading the batch and the update, without validation and saving."""
    validation: Mapping[str, float] | None = None
    checkpoint: Path | None = None
    finished: bool = False


class NonFiniteError(VitkitError):
    """Loss or gradients are no numbers any more."""


class Trainer:
    """A model on its way through a run.

    Args:
        run: the run folder; `metrics.jsonl` and `checkpoints/` are written there.
        model: on its device.
        objective: what is minimised.
        loader: batch n of the run, a pure function of n.
        num_samples: images in the training set.
        config, optimizer_config: how long and how.
        evaluator: validation; its "accuracy" decides what is best, between equals its "loss". None: none.
        configuration: all options of the run as plain data, which checkpoints keep.
        compute: how the model computes, which checkpoints keep too; left out, the plain way.
    """

    def __init__(
        self,
        run: Path,
        model: nn.Module,
        objective: Objective,
        loader: Batches,
        num_samples: int,
        config: TrainingConfig,
        optimizer_config: OptimizerConfig,
        evaluator: Evaluator | None = None,
        configuration: Mapping[str, Any] | None = None,
        compute: Compute | None = None,
    ) -> None:
        self.configuration = configuration
        self.run, self.objective, self.loader, self.evaluator = run, objective, loader, evaluator
        self.num_samples, self.config, self.optimizer_config = num_samples, config, optimizer_config
        self.device = next(model.parameters()).device
        self.total_steps = config.total_steps(num_samples)
        self.evaluate_every = config.evaluation_interval(num_samples)
        average = copy.deepcopy(model).requires_grad_(False) if optimizer_config.polyak else None
        self.state = TrainState(model, create_optimizer(model, optimizer_config), average, Progress())
        self.environment = environment(self.device)
        self.precision = config.precision if compute is None else compute.precision
        if compute is not None:
            self.environment |= {"compute": to_json(compute)}

    @property
    def evaluated_model(self) -> nn.Module:
        """The Polyak average where there is one, else the model itself."""
        return self.state.average or self.state.model

    def resume(self, checkpoint: Path) -> list[str]:
        """Continue from a checkpoint.

        Returns:
            A sentence for each thing that differs from where the checkpoint was written, and by which the
            last bits of the results may differ; and one if the metrics log was damaged since.

        Raises:
            VitkitError: the checkpoint is of another run, or the metrics log cannot be read.
        """
        before = load_checkpoint(checkpoint, self.state).environment
        progress = self.state.progress
        if progress.step > self.total_steps:
            raise VitkitError(
                f"{checkpoint} stands at step {progress.step:,}, but the run's options ask for "
                f"{self.total_steps:,} steps in all. Put back the number of epochs or steps in config.json "
                "that the run began with, or start a new run with another --out."
            )
        self.state.progress, sentences = mend_log(self.run / LOG, progress)
        # Checkpoints of the first version, which knew no other way than the plain one, do not name it.
        before = {"compute": {**to_json(PLAIN), "precision": self.precision}, **before}
        return sentences + [
            f"{key} was {before.get(key)} and is now {value}: results may differ in the last bits."
            for key, value in self.environment.items()
            if before.get(key) != value
        ]

    def fit(self, interrupted: Callable[[], bool] = lambda: False) -> Iterator[StepReport]:
        """Train to the end, one report a step.

        Args:
            interrupted: asked after every step; true commits a checkpoint and ends the loop.

        Raises:
            NonFiniteError: the loss or the gradients are not finite; the step is not applied.
            VitkitError: no memory, too many bad files, or a disk that refuses.
        """
        state, config = self.state, self.config
        if state.progress.finished:
            return
        log = MetricsLog(self.run / LOG, state.progress.log_bytes)
        saved_at = started = time.monotonic()
        try:
            for batch in self.loader.batches(state.progress.step, self.total_steps):
                step = state.progress.step
                rate = learning_rate(self.optimizer_config, step, self.total_steps)
                metrics = self.update(batch, step, rate)
                self._count(step, rate, metrics, log)
                seconds = time.monotonic() - started

                done = step + 1 == self.total_steps
                validation = None
                if self.evaluator is not None and (done or (step + 1) % self.evaluate_every == 0):
                    validation = self._validate(step + 1, log)
                    patience = config.patience
                    done = done or (
                        patience is not None and state.progress.evaluations_since_best >= patience
                    )
                if done:
                    self._write_window(rate, log)
                improved = validation is not None and state.progress.best_step == step + 1
                stop = interrupted()
                every = config.checkpoint_every or self.evaluate_every
                due = (step + 1) % every == 0 or time.monotonic() - saved_at > 60 * config.checkpoint_minutes
                checkpoint = None
                if done or improved or stop or due:
                    self._require_finite_weights(step)
                    length, digest = log.sync()
                    state.progress = replace(
                        state.progress, log_bytes=length, log_sha256=digest, finished=done
                    )
                    checkpoint = save_checkpoint(
                        self.run, state, self.environment, config.keep, self.configuration
                    )
                    saved_at = time.monotonic()
                yield StepReport(
                    step=step + 1,
                    total_steps=self.total_steps,
                    epoch=(step + 1) * config.batch_size / self.num_samples,
                    loss=metrics["loss"],
                    learning_rate=rate,
                    seconds=seconds,
                    validation=validation,
                    checkpoint=checkpoint,
                    finished=done,
                )
                if done or stop:
                    return
                started = time.monotonic()
        finally:
            log.close()

    def update(self, batch: Batch, step: int, rate: float) -> dict[str, float]:
        """One update of the weights from one batch, in micro-batches."""
        model, optimizer = self.state.model, self.state.optimizer
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        model.train()
        size = self.config.micro_batch_size or self.config.batch_size
        valid = max(int(batch.mask.sum()), 1)
        totals: dict[str, Tensor] = {}
        with out_of_memory_explained(min(size, len(batch.labels)), batch.images.shape):
            for part, start in enumerate(range(0, len(batch.labels), size)):
                torch.manual_seed(_step_seed(self.config.seed, step, part))
                micro = batch.slice(start, start + size).to(self.device)
                with self.autocast():
                    loss, metrics = self.objective(model, micro)
                share = micro.mask.sum() / valid
                (loss * share).backward()  # type: ignore[no-untyped-call]
                for name, value in {"loss": loss, **metrics}.items():
                    totals[name] = (
                        totals.get(name, torch.zeros((), device=self.device)) + value.detach() * share
                    )
            totals["grad_norm"] = clip_gradients(model.parameters(), self.optimizer_config.clip_norm)

        # One transfer for all numbers of the step.
        names, values = list(totals), torch.stack([value.float() for value in totals.values()]).tolist()
        numbers = dict(zip(names, values, strict=True))
        if not (math.isfinite(numbers["loss"]) and math.isfinite(numbers["grad_norm"])):
            ids = ", ".join(str(int(i)) for i in batch.ids[batch.mask])
            raise NonFiniteError(
                f"Step {step}: loss {numbers['loss']}, gradient norm {numbers['grad_norm']} at learning rate "
                f"{rate:.3g}. The step was not applied and no checkpoint holds it. Try a lower "
                f"learning rate, longer warm-up or float32. Training samples of the batch: {ids}."
            )
        optimizer.step()
        if self.state.average is not None and self.optimizer_config.polyak is not None:
            update_average(self.state.average, model, self.optimizer_config.polyak, step)
        return numbers

    def _require_finite_weights(self, step: int) -> None:
        """Weights can overflow in an update of finite loss and gradients: no checkpoint may hold them."""
        norms = torch.stack(torch._foreach_norm(list(self.state.model.parameters())))
        if not bool(norms.isfinite().all()):
            raise NonFiniteError(
                f"Step {step}: the update made weights that are not finite. No checkpoint holds them; "
                "the last one committed is whole. Try a lower learning rate, or a longer warm-up."
            )

    def autocast(self) -> AbstractContextManager[Any]:
        """bfloat16 where it was asked for or pays."""
        return autocast(self.device, self.precision)

    def _count(self, step: int, rate: float, metrics: Mapping[str, float], log: MetricsLog) -> None:
        """Add a step to the window of means, and write the window to the log when it is full."""
        progress = self.state.progress
        window = {name: progress.window.get(name, 0.0) + value for name, value in metrics.items()}
        steps = progress.window_steps + 1
        self.state.progress = replace(progress, step=step + 1, window=window, window_steps=steps)
        if (step + 1) % self.config.log_every == 0 or step + 1 == self.total_steps:
            self._write_window(rate, log)

    def _write_window(self, rate: float, log: MetricsLog) -> None:
        """Write the means since the last line, if there were steps."""
        progress = self.state.progress
        if progress.window_steps:
            epoch = progress.step * self.config.batch_size / self.num_samples
            means = {name: total / progress.window_steps for name, total in progress.window.items()}
            log.write(
                {"kind": "train", "step": progress.step, "epoch": epoch, "learning_rate": rate, **means}
            )
            self.state.progress = replace(progress, window={}, window_steps=0)

    def _validate(self, step: int, log: MetricsLog) -> Mapping[str, float]:
        assert self.evaluator is not None
        metrics = self.evaluator(self.evaluated_model)
        epoch = step * self.config.batch_size / self.num_samples
        log.write({"kind": "validation", "step": step, "epoch": epoch, **metrics})
        progress, value, loss = self.state.progress, metrics["accuracy"], metrics["loss"]
        # Few validation images are soon all right: the loss then still tells better from worse.
        before = (progress.best_value, progress.best_loss)
        if before[0] is None or before[1] is None or (value, -loss) > (before[0], -before[1]):
            progress = replace(progress, best_value=value, best_loss=loss, best_step=step)
            progress = replace(progress, evaluations_since_best=0)
        else:
            progress = replace(progress, evaluations_since_best=progress.evaluations_since_best + 1)
        self.state.progress = progress
        return metrics


def _step_seed(seed: int, step: int, part: int) -> int:
    digest = hashlib.sha256(f"{seed}/{step}/{part}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@contextmanager
def out_of_memory_explained(size: int, shape: torch.Size) -> Iterator[None]:
    """Say what to change when `size` images `(..., H, W)` do not fit into memory."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        words = ("out of memory", "allocate memory", "not enough memory")
        if isinstance(error, RuntimeError) and not any(word in str(error) for word in words):
            raise
        raise VitkitError(
            f"Out of memory with {size} images of {shape[-2]}x{shape[-1]} at a time. Run the same command "
            f"with --micro-batch-size {max(1, size // 2)}: gradients are summed up to the same batch. "
            "Or choose a smaller model or image size."
        ) from error
