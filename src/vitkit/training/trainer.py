"""The training loop, for any objective: one update a step, evaluators and checkpoints between them.

Whatever happens in step n follows from the weights, the states of optimiser and objective, the run's options
and n: the batch is a function of n, and so is the seed of all randomness in it. That is why a checkpoint
needs no random state, and why a run that was killed ends with the same bits as one that was not.

On a GPU the numbers of a step (loss, metrics, gradient norm) are read a step later. Reading them at once
would wait until the step is computed, and leave the GPU idle until the next one is launched. So `launch`
sends them to the CPU, `fit` puts them at the end of `unread`, and `_read` takes them out once there are
more than `lag`. Two things follow. A step whose numbers are not finite must be skipped by the optimiser
itself, before anybody has seen them, by its `found_inf`. And before a training line of the log or a
checkpoint all is read, as it must hold the numbers of all steps. On a CPU, with an optimiser that cannot skip
a step, and where the state is sharded, `lag` is 0 and all is read at once.

The metrics log holds no time and no speed, so it is the same bytes however often the run was stopped. A
checkpoint records length and hash of the log at its step. Lines beyond were written by steps that will be
made again and are cut off; a log that begins with other bytes was damaged, and is set aside whole: none of
its lines can be trusted.
"""

import copy
import hashlib
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from vitkit.config import to_json
from vitkit.data.stream.loader import Batch
from vitkit.durable import moved_error, read_chunks, replace_file
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.models.image_model import ImageModel, autocast, copy_to_processor
from vitkit.training import checkpoint as checkpoints
from vitkit.training.config import VALIDATION, OptimizerConfig, Sharding, TrainingConfig
from vitkit.training.evaluators import Evaluator, Monitor, judge
from vitkit.training.gradients import Gradients, assemble, shard, skeleton_of, take_local
from vitkit.training.optim import PolyakAverage, clip_gradients, create_optimizer, learning_rate, rate_scales
from vitkit.world import ALONE, World

LOG = "metrics.jsonl"
"""The metrics log in the run folder: one JSON object a line, for training and for each evaluator."""
MICRO_BATCH = "micro_batch_size"
"""The entry of a checkpoint's environment with the number of images that went through the model at once,
where a GPU's memory was too small for the micro-batch."""
SHARDING = "sharding"
"""The entry with the division of the state among processes."""
CHECKPOINT_SECONDS = 600.0
"""Seconds after which a checkpoint is written even before the next such step: a kill loses no more work."""
REGULAR_SECONDS = 10.0
"""Seconds at least between two checkpoints whose interval nobody chose: else a small model would spend more
than a tenth of its time on them."""
IDS_SHOWN = 5
"""Images of a batch that an error names: a few are enough to look at, and a batch may have thousands."""


@dataclass(frozen=True)
class StepNumbers:
    """The loss, the metrics and the gradient's norm of a step, which a GPU may still be computing."""

    names: tuple[str, ...]
    values: Callable[[], Tensor]
    """Waits for the values, `(len(names),)` float32 on the CPU."""
    batch: Batch
    step: int
    rate: float

    def read(self) -> dict[str, float]:
        """Wait for the numbers.

        Raises:
            NonFiniteError: the loss or the gradient's norm is not finite.
        """
        numbers = dict(zip(self.names, self.values().tolist(), strict=True))
        if not (math.isfinite(numbers["loss"]) and math.isfinite(numbers["grad_norm"])):
            ids = self.batch.ids[self.batch.mask].tolist()
            more = f" and {len(ids) - IDS_SHOWN:,} more" if len(ids) > IDS_SHOWN else ""
            raise NonFiniteError(
                f"Step {self.step}: loss {numbers['loss']}, gradient norm {numbers['grad_norm']} at learning "
                f"rate {self.rate:.3g}. The step was not applied and no checkpoint holds it. Try a lower "
                "learning rate, longer warm-up or float32. Training samples of the batch: "
                f"{', '.join(map(str, ids[:IDS_SHOWN]))}{more}."
            )
        return numbers


class MetricsLog:
    """The log, open for writing after its first `length` bytes; the rest is cut off.

    Raises:
        VitkitError: it cannot be opened or read, or is no regular file.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.fresh: list[Mapping[str, Any]] = []
        with ExitStack() as stack:  # closed again where something is refused
            try:
                # Without O_NONBLOCK, opening a pipe waits for a reader.
                flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
                self.descriptor = os.open(path, flags, 0o644)
                stack.callback(os.close, self.descriptor)
                # Open until the end, so that no other folder gets the same number.
                self.folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, self.folder)
                self.length, self.digest = _hash_beginning(path, length)
                os.ftruncate(self.descriptor, self.length)
            except OSError as error:
                raise self._refused(error) from error
            self.close = stack.pop_all().close

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
            VitkitError: the disk refused, or the folder was moved.
        """
        self._require_same_folder()
        data = memory = json.dumps(line).encode() + b"\n"
        try:
            while data:  # a write may be short
                data = data[os.write(self.descriptor, data) :]
        except OSError as error:
            raise self._refused(error) from error
        self.digest.update(memory)
        self.length += len(memory)
        self.fresh.append(line)

    def take(self) -> tuple[Mapping[str, Any], ...]:
        """Return the lines that were written since the last call."""
        taken, self.fresh = tuple(self.fresh), []
        return taken

    def sync(self) -> tuple[int, str]:
        """Flush to the disk; returns length and SHA-256.

        Raises:
            VitkitError: the disk refused, or the folder was moved.
        """
        self._require_same_folder()  # a checkpoint follows, into the folder of this path
        try:
            os.fsync(self.descriptor)
        except OSError as error:
            raise self._refused(error) from error
        return self.length, self.digest.hexdigest()

    def _require_same_folder(self) -> None:
        """Refuse to go on where the path of the run folder leads to no folder, or to another one."""
        folder = self.path.parent
        if not (folder.is_dir() and os.path.samestat(os.stat(folder), os.fstat(self.folder))):
            raise moved_error(folder)

    def _refused(self, error: OSError) -> VitkitError:
        return VitkitError(
            f"{self.path} could not be written: {error.strerror or error}. Checkpoints committed before are "
            "untouched: mend this (is there room?), then run the same command again to continue."
        )


def repair_log(path: Path, progress: checkpoints.Progress) -> tuple[checkpoints.Progress, list[str]]:
    """Make sure that the log begins with the bytes that a checkpoint recorded.

    A log of other bytes is renamed, never cut, and a new one begins with a line that says at which step.

    Returns:
        The progress to continue from, and a sentence for the user if the log was damaged.

    Raises:
        VitkitError: the log cannot be read, or the disk refused.
    """
    restart = json.dumps({"kind": "restart", "step": progress.step}).encode() + b"\n"
    try:
        begins = _prefix(path, progress.log_bytes)
        if begins == (progress.log_bytes, progress.log_sha256):
            return progress, []
        restart_hash = hashlib.sha256(restart).hexdigest()
        renewed = replace(progress, log_bytes=len(restart), log_sha256=restart_hash)
        if _prefix(path, len(restart)) == (len(restart), restart_hash):
            return renewed, []  # repaired before, by a run that was killed before its next checkpoint
        reason = "is gone"
        if begins is not None:
            reason = f"is not as it was written, and is now {checkpoints.set_aside(path)}"
        replace_file(path, [restart])
    except OSError as error:
        raise VitkitError(
            f"{path} could not be read or renewed: {error.strerror or error}. Nothing was removed. Mend "
            "this, then run the same command again to continue."
        ) from error
    return renewed, [f"{path} {reason}. A new one begins after step {progress.step}."]


def _prefix(path: Path, length: int) -> tuple[int, str] | None:
    """Measure and hash the first `length` bytes, or all if there are fewer; None without a file."""
    try:
        size, digest = _hash_beginning(path, length)
    except FileNotFoundError:
        return None
    return size, digest.hexdigest()


def _hash_beginning(path: Path, length: int) -> tuple[int, "hashlib._Hash"]:
    """Measure and hash the first `length` bytes of a regular file, or all if there are fewer."""
    digest, size = hashlib.sha256(), 0
    with closing(read_chunks(path)) as chunks:  # which may not be read to the end
        for chunk in chunks:
            digest.update(chunk[: length - size])
            size = min(size + len(chunk), length)
            if size == length:
                break
    return size, digest


class Batches(Protocol):
    """A source of training images, such as `vitkit.data.stream.loader.TrainLoader`."""

    def batches(self, start: int, stop: int) -> Iterator[Batch]:
        """Yield the batches of steps `start` to `stop - 1`; batch n is the same whatever `start` is."""


@dataclass(frozen=True)
class StepReport:
    """A step as `fit` reports it: the numbers of the update, and the measurements and checkpoint after it."""

    step: int
    """Updates made so far, this one included."""
    loss: float
    """Mean over the batch's readable images, before the update, in the last step whose numbers were read: on
    a GPU that may be the step before this one."""
    seconds: float
    """Duration of reading the batch and of the update, without validation and saving. Where numbers are read
    a step later, it includes waiting for the update before and only launching this one."""
    measured: Mapping[str, Mapping[str, float]]
    """The numbers of each evaluator that measured after this step."""
    checkpoint: Path | None = None
    """The checkpoint of this step or of an earlier one that was committed since the report before."""
    finished: bool = False
    """Whether the run is over: all steps are made, or patience is used up."""
    lowered_to: int | None = None
    """Images at a time from this step on, where more of them did not fit into the memory of the GPU."""
    logged: tuple[Mapping[str, Any], ...] = ()
    """The lines that this step added to the metrics log."""


class Trainer:
    """Trains one model: owns it, its optimiser and its progress; writes metrics and checkpoints.

    Args:
        run: the run folder; `metrics.jsonl` and `checkpoints/` are written there.
        model: the model, on the one device that training uses. It computes as `model.chosen` says, which
            checkpoints record.
        objective: a module as `vitkit.training.objectives` describes it; moved to the model's device.
        loader: the training images; batch n is a pure function of n.
        num_samples: images in the training set, which turn epochs into steps.
        config: length of the run, micro-batches, and when to log, validate and save.
        optimizer_config: optimiser, learning-rate schedule, clipping and weight averaging.
        evaluators: measurements between steps, by the name that their lines in `metrics.jsonl` have.
        monitor: the number that decides which weights are best; None: nothing does.
        configuration: all options of the run as plain data, which checkpoints keep.
        mixes: whether the objective mixes each image with the one before it.
        world: the processes that train together, of which the first writes.
        spare_memory: gives the bytes of memory that may hold a copy of the state while it is saved; None:
            training waits for each checkpoint.
        sharding: the division of the state among the processes. The weights must be the same in all of them.

    Raises:
        VitkitError: the monitor watches an evaluator that is not there, or the state cannot be divided like
            that.
    """

    def __init__(
        self,
        run: Path,
        model: ImageModel,
        objective: nn.Module,
        loader: Batches,
        num_samples: int,
        config: TrainingConfig,
        optimizer_config: OptimizerConfig,
        evaluators: Mapping[str, Evaluator] | None = None,
        monitor: Monitor | None = None,
        configuration: Mapping[str, Any] | None = None,
        mixes: bool = False,
        world: World = ALONE,
        spare_memory: Callable[[], int | None] | None = None,
        sharding: Sharding = "replicas",
    ) -> None:
        self.world = world
        self.writer = checkpoints.CheckpointWriter(run, config.keep, spare_memory)
        self.configuration = configuration
        self.run, self.loader = run, loader
        self.evaluators, self.monitor = dict(evaluators or {}), monitor
        if monitor is not None and monitor.evaluator not in self.evaluators:
            raise VitkitError(
                f"The monitor expects an evaluator named {monitor.evaluator!r}, found "
                f"{', '.join(map(repr, self.evaluators)) or 'none'}. Add it, or train without a monitor."
            )
        self.num_samples, self.config, self.optimizer_config = num_samples, config, optimizer_config
        self.device = next(model.parameters()).device
        self.objective = objective.to(self.device)
        # An objective may own parameters (a decoder, a projection head), so both are optimised. A checkpoint
        # numbers the optimiser's state by the order of the parameters: the model's come first.
        self.trained = nn.ModuleList([model, objective])
        self.total_steps = config.total_steps(num_samples)
        self.evaluate_every = config.evaluation_interval(num_samples)
        # The average is a second model, so that it can be evaluated like the first. No gradient reaches it.
        average = copy.deepcopy(model).requires_grad_(False) if optimizer_config.polyak else None
        has_parameters = any(True for _ in objective.parameters())
        averages = average is not None and has_parameters
        averaged_objective = copy.deepcopy(objective).requires_grad_(False) if averages else None
        self.autocast = partial(autocast, self.device, model.chosen.precision)
        # The model without its numbers, from which whole ones are assembled where the state is sharded.
        self.skeleton = None if sharding == "replicas" else skeleton_of(model)
        if self.skeleton is not None:
            if has_parameters:
                raise VitkitError(
                    f"The parameters of a {type(objective).__name__} cannot be sharded: choose --sharding "
                    "replicas."
                )
            for whole in (model, average):
                if whole is not None:
                    shard(whole, world, sharding, model.chosen.precision)
        scales = rate_scales(model, optimizer_config)
        for parameter, scale in scales.items():
            parameter.requires_grad_(parameter.requires_grad and scale > 0)  # frozen ones get no gradient
        optimizer = create_optimizer(self.trained, optimizer_config, scales)
        self.state = checkpoints.TrainState(
            model, optimizer, average, checkpoints.Progress(), self.objective, averaged_objective
        )
        chosen = {SHARDING: sharding, "compute": to_json(model.chosen)}
        self.environment = {**checkpoints.environment(self.device, world.size), **chosen}
        # Steps whose numbers may be unread while the next one is launched: the head of this file says why.
        # PyTorch marks the optimisers that skip a step by themselves where their attribute `found_inf` is 1.
        skips = getattr(optimizer, "_step_supports_amp_scaling", False) and self.skeleton is None
        self.lag = 1 if self.device.type == "cuda" and skips else 0
        self.unread: deque[StepNumbers] = deque()
        self.loss: float | None = None  # of the last step whose numbers were read
        self.log: MetricsLog | None = None  # open in `fit`, in the process that writes
        self.gradients = Gradients(
            model, self.objective, optimizer, self.autocast, self.total_steps, config, mixes, world
        )
        self.full_size = self.gradients.size  # images at a time, unless the memory is too small for them

    @cached_property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.trained.parameters())

    @cached_property
    def _averages(self) -> list[PolyakAverage]:
        state = self.state
        pairs = ((state.average, state.model), (state.averaged_objective, self.objective))
        return [PolyakAverage(average, trained) for average, trained in pairs if average is not None]

    @property
    def evaluated_model(self) -> nn.Module:
        """The model that evaluators measure: the Polyak average where there is one, else the model itself."""
        return self.state.average or self.state.model

    @property
    def evaluated_objective(self) -> nn.Module:
        """The objective of `evaluated_model`: with the average of its parameters, where there is one."""
        return self.state.averaged_objective or self.state.objective

    def resume(self, checkpoint: Path) -> list[str]:
        """Continue from a checkpoint.

        Returns:
            A sentence for each difference from the environment in which the checkpoint was written, since the
            last bits of the results may differ by it; and one if the metrics log was damaged.

        Raises:
            VitkitError: the checkpoint is of another run, or the metrics log cannot be read.
        """
        recorded = dict(checkpoints.load_checkpoint(checkpoint, self.state).environment)
        # As many images at a time as before the stop, even if more fit now: sums of other parts would have
        # other last bits, and dropout draws for each part.
        if recorded.get(MICRO_BATCH, self.full_size) < self.full_size:
            self.gradients.size = self.environment[MICRO_BATCH] = recorded[MICRO_BATCH]
        progress = self.state.progress
        # A shorter run than the checkpoint's would end at once, with weights of another schedule.
        if progress.step > self.total_steps:
            raise VitkitError(
                f"{checkpoint} stands at step {progress.step:,}, but the run's options ask for "
                f"{self.total_steps:,} steps in all. Put back the number of epochs or steps in config.json "
                "that the run began with, or start a new run with another --out."
            )
        sentences = list[str]()
        if self.world.writes:
            self.state.progress, sentences = repair_log(self.run / LOG, progress)
        return sentences + [
            f"{key} was {recorded.get(key)} and is now {value}: results may differ in the last bits."
            for key, value in self.environment.items()
            if recorded.get(key) != value and key != MICRO_BATCH
        ]

    def fit(self, interrupted: Callable[[], bool] = lambda: False) -> Generator[StepReport]:
        """Train to the end, one report a step.

        Args:
            interrupted: called after every step; true commits a checkpoint and ends the loop.

        Raises:
            NonFiniteError: the loss or the gradients are not finite; the step is not applied.
            VitkitError: no memory, too many bad files, or a disk that refuses.
        """
        state = self.state
        if state.progress.finished:
            return
        if self.world.writes:
            checkpoints.make_folder(self.run)
        # What the log holds beyond the checkpoint was written by steps that are made again: it is cut off.
        self.log = MetricsLog(self.run / LOG, state.progress.log_bytes) if self.world.writes else None
        saved_at = started = time.monotonic()
        checkpoint_every = self.config.checkpoint_every or self.evaluate_every
        try:
            for batch in self.loader.batches(state.progress.step, self.total_steps):
                step = state.progress.step  # updates made before this one: the first is number 0
                rate = learning_rate(self.optimizer_config, step, self.total_steps)
                size_before = self.gradients.size
                self.unread.append(self.launch(batch, step, rate))
                self.state.progress = replace(self.state.progress, step=step + 1)
                # The first step of a process is waited for, so that its report has a loss.
                self.loss = loss = self._read(0 if self.loss is None else self.lag)
                if (step + 1) % self.config.log_every == 0 or step + 1 == self.total_steps:
                    self._write_window(rate)
                # Taken here, so that measuring and saving do not count towards the images per second.
                seconds = time.monotonic() - started
                measured = self._evaluate(step + 1)
                done = self._is_over(step + 1)  # after the validation, which may use up the patience
                if done:
                    # Before the checkpoint, whose length of the log must include this line: a finished run is
                    # never continued, so nobody would write it later.
                    self._write_window(rate)
                # `best_step` was set by the evaluation just above.
                improved = self.config.select == "best" and state.progress.best_step == step + 1
                # `interrupted` is called once, because its answer also ends the loop below. A signal may have
                # reached any of the processes; of the clock process 0 decides alone.
                # The clock decides only when a checkpoint is made, never its contents: no bits depend on it.
                since = time.monotonic() - saved_at
                regular = (step + 1) % checkpoint_every == 0
                regular = regular and (self.config.checkpoint_every is not None or since > REGULAR_SECONDS)
                due = self.world.writes and (regular or since > CHECKPOINT_SECONDS)
                stop, due = (count > 0 for count in self.world.total(interrupted(), due))
                # A step that improved is saved too: the best weights must reach the disk, since the next
                # update overwrites them in memory.
                if done or improved or stop or due:
                    # At once where the loop ends, so that the last report names the checkpoint.
                    self._save(step, finished=done, at_once=done or stop)
                    saved_at = time.monotonic()
                yield StepReport(
                    step=step + 1,
                    loss=loss,
                    seconds=seconds,
                    measured=measured,
                    checkpoint=self.writer.take_committed(),
                    finished=done,
                    lowered_to=None if self.gradients.size == size_before else self.gradients.size,
                    logged=() if self.log is None else self.log.take(),
                )
                if done or stop:
                    return
                started = time.monotonic()  # here and not above: the caller takes time over the report too
        finally:
            try:
                self.writer.wait()
            finally:
                if self.log is not None:
                    self.log.close()

    def _is_over(self, step: int) -> bool:
        """Whether the run is over after `step` updates: all are made, or patience is used up."""
        patience = self.config.patience
        impatient = patience is not None and self.state.progress.evaluations_since_best >= patience
        return impatient or step == self.total_steps

    def _save(self, step: int, finished: bool, at_once: bool) -> None:
        """Save a checkpoint after update number `step`; a large one in the background, unless `at_once`."""
        self._read()
        # Only here and not at every step: looking at all weights costs a pass over them and a wait for the
        # GPU, and weights that no checkpoint holds do no harm: the loss of the next step shows them.
        # Norms, not the values: one number for each tensor, and a single transfer for all of them. A sum of
        # squares is infinite or no number if any of its terms is.
        floats = [value for value in self.objective.buffers() if value.is_floating_point()]
        norms = torch._foreach_norm([take_local(value) for value in (*self.trained.parameters(), *floats)])
        if any(self.world.total(not bool(torch.stack(norms).isfinite().all()))):
            raise NonFiniteError(
                f"Step {step}: the update made weights that are not finite. No checkpoint holds them; "
                "the last one committed is whole. Try a lower learning rate, or a longer warm-up."
            )
        # The log reaches the disk before the checkpoint that records its length and hash does. The other way
        # round, a power cut between the two would leave a checkpoint whose log is shorter than it says.
        length, digest = (0, None) if self.log is None else self.log.sync()
        self.state.progress = replace(
            self.state.progress, log_bytes=length, log_sha256=digest, finished=finished
        )
        if self.world.writes:
            self.writer.save(self.state, self.environment, self.configuration, at_once)
        else:  # process 0 collects the parts of a sharded state meanwhile, in `save`
            with self.world.activity.together():
                checkpoints.give_parts(self.state)

    def launch(self, batch: Batch, step: int, rate: float) -> StepNumbers:
        """Make one update of the weights from one batch, in micro-batches, without waiting for a GPU.

        Args:
            batch: the images and targets, on the CPU.
            step: updates made before this one, from which all randomness in it follows.
            rate: the learning rate.

        Returns:
            The loss, the objective's metrics, and `grad_norm`, the norm of the gradients before clipping. The
            first two are means over the batch's readable images.

        Raises:
            NonFiniteError: the loss or the gradients are not finite; the model's weights are as before. Where
                the optimiser skips the step (`lag`), reading the numbers raises it: averages have moved then,
                and all later updates are skipped.
            VitkitError: a micro-batch does not fit into memory.
        """
        optimizer = self.state.optimizer
        # Set at every step and computed from its number: a scheduler object would be one more state to save.
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        if not (self.state.model.training and self.objective.training):
            self.trained.train()  # a loaded model comes in evaluation mode, without dropout
        totals = self.gradients.compute(batch, step)
        if self.gradients.size < self.full_size:  # written down: a resumed run adds up as this one does
            self.environment[MICRO_BATCH] = self.gradients.size
        # After the last micro-batch: the norm to clip is the norm of the whole batch's gradient.
        totals["grad_norm"] = clip_gradients(self._parameters, self.optimizer_config.clip_norm)
        # Sent to the CPU in one transfer, without waiting for them to arrive.
        values = copy_to_processor(torch.stack([value.float() for value in totals.values()]))
        numbers = StepNumbers(tuple(totals), values, batch, step, rate)
        # Loss and norm are checked before every update, by the optimiser or here: an infinite one would make
        # the weights infinite.
        if self.lag:
            # The decision is a tensor, so that the GPU takes it and the processor does not wait; PyTorch's
            # `GradScaler` skips steps by the same attribute. Here it is never set back to 0, since the step
            # after is launched before anybody has read that this one was not finite.
            not_finite = (~(totals["loss"].isfinite() & totals["grad_norm"].isfinite())).float()
            earlier = getattr(optimizer, "found_inf", not_finite)
            # PyTorch's fused optimisers look for it, undeclared.
            setattr(optimizer, "found_inf", torch.maximum(earlier, not_finite))  # noqa: B010
        else:
            numbers.read()
        optimizer.step()
        if after_step := getattr(self.objective, "after_step", None):
            with torch.no_grad():
                after_step()
        # Last, so that parameters that the objective changes in `after_step` are averaged after the change.
        for average in self._averages:
            average.update(cast("float", self.optimizer_config.polyak), step)
        return numbers

    def _read(self, lag: int = 0) -> float:
        """Add the numbers of launched steps to the sums since the last line, until `lag` steps are unread.

        Returns:
            The loss of the last step that was read, now or earlier.
        """
        while len(self.unread) > lag:
            metrics, progress = self.unread.popleft().read(), self.state.progress
            window = {name: progress.window.get(name, 0.0) + value for name, value in metrics.items()}
            steps = progress.window_steps + 1
            self.state.progress = replace(progress, window=window, window_steps=steps)
            self.loss = metrics["loss"]
        assert self.loss is not None, "expected that a step was counted before"
        return self.loss

    def _write_window(self, rate: float) -> None:
        """Write a training line: the means over the steps since the last one (the window), if there were any.

        All numbers are read first. The sums are part of the progress, so that a window which began before a
        stop ends with the same means.
        """
        self._read()
        progress = self.state.progress
        if progress.window_steps:
            means = {name: total / progress.window_steps for name, total in progress.window.items()}
            self._write("train", {}, {"learning_rate": rate, **means})
            self.state.progress = replace(progress, window={}, window_steps=0)

    def _evaluate(self, step: int) -> dict[str, Mapping[str, float]]:
        """Run the evaluators that are due after `step` updates, and log their numbers.

        Returns:
            The numbers of each evaluator that was due, by its name.
        """
        watched = None if self.monitor is None else self.monitor.evaluator
        model: nn.Module | None = None
        measured: dict[str, Mapping[str, float]] = {}
        # The monitored evaluator comes first (False sorts before True): it may use up the patience and so end
        # the run, and at the end all others measure too. So each checks again whether the run is over.
        for name in sorted(self.evaluators, key=lambda name: name != watched):
            evaluator = self.evaluators[name]
            if self._is_over(step) or step % (evaluator.every or self.evaluate_every) == 0:
                numbers: Mapping[str, float] = {}
                if self.skeleton is None:
                    model = self.evaluated_model
                elif model is None:  # a whole one is assembled, which all processes do at the same point
                    with self.world.activity.together():
                        model = assemble(self.skeleton, self.evaluated_model.state_dict(), self.device)
                # An evaluator that is not for all processes together measures in process 0, which tells the
                # others.
                if evaluator.together or self.world.writes:
                    numbers = evaluator.measure(model, self.evaluated_objective)
                measured[name] = self.world.tell(dict(numbers))
                # Other evaluators share a kind, so that readers know all kinds and notice a damaged one.
                kind, own = (name, {}) if name == VALIDATION else ("evaluation", {"evaluator": name})
                self._write(kind, own, measured[name])
                if self.monitor is not None and name == watched:
                    self.state.progress = judge(self.monitor, measured[name], step, self.state.progress)
        return measured

    def _write(self, kind: str, own: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        """Write a line of the log; `own` is between its kind and its step."""
        if self.log is not None:
            step = self.state.progress.step
            epoch = step * self.config.batch_size / self.num_samples  # passes over the training images
            self.log.write({"kind": kind, **own, "step": step, "epoch": epoch, **numbers})
