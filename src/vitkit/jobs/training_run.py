"""One run from its first screen to its report, built from its configuration."""

import copy
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table
from torch import nn

from vitkit._version import __version__
from vitkit.analysis.cost import forward_flops
from vitkit.cli import console
from vitkit.cli.listener import TerminalListener
from vitkit.config import to_json
from vitkit.data.listing import counted
from vitkit.data.loader import (
    Batch,
    MemorySamples,
    TrainLoader,
    check_decode_memory,
    evaluation_batches,
    keep_in_memory,
    largest_decoding,
)
from vitkit.data.sources import ImageData
from vitkit.durable import open_to_append, replace_json
from vitkit.evaluation.classify import classification, predict
from vitkit.jobs.data_record import RECORD, check_data
from vitkit.jobs.evaluate import evaluate_split
from vitkit.jobs.machine import InterruptedTraining, available_memory, memory_used
from vitkit.jobs.report import write_report
from vitkit.jobs.run_config import Run
from vitkit.jobs.run_folder import run_card, write_evaluation
from vitkit.jobs.starting_point import (
    keep_damaged,
    model_is_whole,
    name_what_was_set_aside,
    starting_point,
)
from vitkit.models.image_model import ImageModel
from vitkit.models.vit_config import ViTConfig
from vitkit.models.zoo import build_model, count_parameters
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.text import format_bytes, format_count, format_duration
from vitkit.training.checkpoint import load_weights
from vitkit.training.checkpoint_files import FOLDER, damage, read_progress, step_name
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer, out_of_memory_explained
from vitkit.weights import save_model
from vitkit.weights.card import card_of


class TrainingRun:
    """The parts of one run, built from its configuration."""

    def __init__(
        self,
        run: Run,
        data: ImageData,
        folder: Path,
        device: torch.device,
        again: str,
        from_scratch: bool = False,
    ) -> None:
        """`again`: the command that continues the run; `from_scratch`: as in `vitkit.train`."""
        self.run, self.data, self.folder, self.device, self.again = run, data, folder, device, again
        self.from_scratch = from_scratch
        self._stopped_at = "before the first step"
        fingerprint = data.fingerprint()
        self.record = check_data(folder, data, fingerprint, run.loading.check_images)
        self.rejects = {split: dict(files) for split, files in self.record.rejects.items()}
        config = run.architecture.of(run.model, len(data.class_names), run.preprocessing)
        generator = torch.Generator().manual_seed(run.training.seed)
        self.model = build_model(config, generator)
        self.model.card = run_card(run, data, fingerprint)

    def complete(self) -> Path:
        """Bring the run to its end, wherever it stands.

        Raises:
            InterruptedTraining: a signal asked to stop.
        """
        with stop_signals() as stop:
            try:
                return self._complete(stop)
            except StopRequest as request:
                raise InterruptedTraining(
                    f"Stopped {self._stopped_at} ({request}). Continue with: {self.again}", request.number
                ) from None

    def _complete(self, stop: StopSignals) -> Path:
        checkpoint = starting_point(self.folder, self.run, self.from_scratch)
        if self._is_complete(checkpoint):
            console.out.print(f"This run has finished: {escape(str(self.folder))}")
            name_what_was_set_aside(self.folder)
            self._say_what_next()
            return self.folder
        self._read_images()
        trainer = self._trainer()
        differences = trainer.resume(checkpoint) if checkpoint is not None else []
        if checkpoint is not None:
            self._stopped_at = f"at step {trainer.state.progress.step}, which was committed before"
        self._first_screen(trainer, checkpoint)
        for sentence in differences:
            console.err.print(f"[yellow]{escape(sentence)}[/]")
        self._fit(trainer, stop)
        self._stopped_at = "after the last step, which is committed, before the report was written"
        weights = self._finished_weights(trainer)
        save_model(self.model, self.folder)
        self._evaluate(weights)
        self._record_rejects()
        self._say_rejects()
        report = write_report(self.folder, listener=TerminalListener())
        console.out.print(f"report   {escape(str(report))}")
        name_what_was_set_aside(self.folder)
        self._say_what_next()
        return self.folder

    def _is_complete(self, checkpoint: Path | None) -> bool:
        """Whether everything that a run ends with is there; the report is what is written last."""
        if checkpoint is None or not read_progress(checkpoint).finished:
            return False
        evaluations = [f"evaluation/{split}.json" for split in ("val", "test") if split in self.data.splits]
        names = ("model.safetensors", "model.json", *evaluations, "report.html")
        return all((self.folder / name).exists() for name in names) and model_is_whole(self.folder)

    def _read_images(self) -> None:
        """Decode small splits once; what is too large is read as it is needed."""
        limit = int(self.run.loading.memory_gib * 2**30)
        splits = {}
        for split, samples in self.data.splits.items():
            with console.reaching(f"reading {split} images") as progress:
                splits[split] = kept = keep_in_memory(samples, limit, progress)
            if not isinstance(kept, MemorySamples):
                workers = self.run.loading.workers_for(kept)
                warning = check_decode_memory(largest_decoding(kept), workers, available_memory())
                if warning is not None:
                    console.err.print(f"[yellow]{split}: {escape(warning)}[/]")
            if isinstance(kept, MemorySamples) and kept.bad:
                found = {kept.key(index): reason for index, reason in kept.bad.items()}
                self.rejects.setdefault(split, {}).update(found)
        self.data = replace(self.data, splits=splits)

    def _trainer(self) -> Trainer:
        run, train = self.run, self.data.splits["train"]
        self.loader = TrainLoader(
            train,
            run.preprocessing,
            run.augmentation,
            batch_size=run.training.batch_size,
            seed=run.training.seed,
            workers=run.loading.workers_for(train),
            bad_quota=run.loading.bad_quota,
            worker_timeout=run.loading.worker_timeout,
        )
        # What was found before counts on, so that a resumed run knows all and the quota is the run's.
        self.loader.rejects.update(self.rejects.get("train", {}))
        self.rejects["train"] = self.loader.rejects
        return Trainer(
            self.folder,
            self.model.to(self.device),
            Classification(run.objective, len(self.data.class_names)),
            self.loader,
            len(train),
            run.training,
            run.optimizer,
            self._validate if "val" in self.data.splits else None,
            configuration=to_json(run),
        )

    def _validate(self, model: nn.Module) -> Mapping[str, float]:
        samples = self.data.splits["val"]
        batches = evaluation_batches(
            samples,
            self.run.preprocessing,
            self.run.training.micro_batch_size or self.run.training.batch_size,
            self.run.loading.workers_for(samples),
            self.rejects.setdefault("val", {}),
            worker_timeout=self.run.loading.worker_timeout,
        )
        # The loss is the objective's without smoothing and mixup; of the logits nothing else is needed.
        predictions = predict(
            model,
            batches,
            device=self.device,
            precision=self.run.training.precision,
            loss=self.run.objective.loss,
            keep_logits=False,
        )
        result = classification(predictions, self.data.class_names)
        return {"loss": result.loss, "accuracy": result.accuracy}

    def _fit(self, trainer: Trainer, stop: StopSignals) -> None:
        batch_size, accuracy = self.run.training.batch_size, ""
        with console.progress_bar() as bar, stop.held(), self._speed_log() as log:
            start = trainer.state.progress.step
            if not start:
                self._stopped_at = "before the first checkpoint was committed"
            task = bar.add_task("training", total=trainer.total_steps, completed=start, detail="")
            elapsed, steps = 0.0, 0
            for report in trainer.fit(lambda: stop.number is not None):
                steps, elapsed = steps + 1, elapsed + report.seconds
                if report.validation is not None:
                    accuracy = f"  val {report.validation['accuracy']:.1%}"
                speed = steps * batch_size / max(elapsed, 1e-9)
                memory = memory_used(self.device)
                bar.update(
                    task,
                    completed=report.step,
                    detail=f"loss {report.loss:.3f}{accuracy}  {speed:,.0f} images/s  {format_bytes(memory)}",
                    milestone=report.validation is not None,  # a line where there is no terminal
                )
                if report.checkpoint is not None:
                    self._stopped_at = f"at step {report.step} of {report.total_steps}, which is committed"
                    if stop.number is not None:
                        stop.let_nothing_interrupt()
                    self._record_rejects()
                if report.step % self.run.training.log_every == 0 or report.finished:
                    log({"step": report.step, "images_per_second": round(speed, 1), "memory_bytes": memory})
                    elapsed, steps = 0.0, 0

    def _finished_weights(self, trainer: Trainer) -> str:
        """Put the weights the run ends with into the model; says which they are."""
        progress, kind = trainer.state.progress, "weights"
        if trainer.state.average is not None:
            kind = "Polyak average"
        self.model.load_state_dict(trainer.evaluated_model.state_dict())
        which = f"{kind} of the last step, {progress.step}"
        best = progress.best_step
        if self.run.training.select == "best" and best not in (None, progress.step):
            checkpoint = self.folder / FOLDER / step_name(best)
            reason = damage(checkpoint)
            if reason is None:
                self.model.load_state_dict(load_weights(checkpoint))
                which = f"{kind} of step {best}, the best validation"
            else:
                which += f", because {checkpoint.name}, the best validation, is not whole"
                keep_damaged({checkpoint: reason})
        card = card_of(self.model)
        origin = {
            **card.origin,
            "weights": which,
            "vitkit": __version__,
            "torch": torch.__version__,
        }
        self.model.card = replace(card, origin=origin)
        self.model.eval()
        return which

    def _evaluate(self, weights: str) -> None:
        for split in ("val", "test"):
            if split not in self.data.splits:
                continue
            rejects = self.rejects.setdefault(split, {})
            workers = self.run.loading.workers_for(self.data.splits[split])
            result, predictions = evaluate_split(
                self.model,
                self.data,
                split,
                self.device,
                rejects,
                precision=self.run.training.precision,
                workers=workers,
                worker_timeout=self.run.loading.worker_timeout,
                folder=self.folder,
                listener=TerminalListener(),
            )
            write_evaluation(self.folder, split, result, predictions)
            low, high = result.accuracy_interval
            unread = f", {result.bad} unreadable" if result.bad else ""
            console.out.print(
                f"{split:8} [bold]{result.accuracy:.2%}[/] accuracy on {result.count:,} images{unread} "
                f"(95 % interval {low:.1%} to {high:.1%})"
            )
        console.out.print(f"weights  {weights}: {escape(str(self.folder / 'model.safetensors'))}")

    def _first_screen(self, trainer: Trainer, checkpoint: Path | None) -> None:
        run, config = self.run, self.model.config
        train = self.data.splits["train"]
        counts = " · ".join(f"{split} {len(samples):,}" for split, samples in self.data.splits.items())
        names = self.data.class_names
        shown = ", ".join(names[:8]) + (f", ... {names[-1]}" if len(names) > 8 else "")
        memory = (
            f"kept in memory (limit {run.loading.memory_gib:g} GiB a split)"
            if isinstance(train, MemorySamples)
            else f"read as needed by {run.loading.workers_for(train)} workers: decoded, they exceed "
            f"{run.loading.memory_gib:g} GiB"
        )
        remaining = trainer.total_steps - trainer.state.progress.step
        seconds = remaining * _seconds_per_step(self.model, trainer, run.training.batch_size)
        state_bytes = count_parameters(self.model) * 4 * (3 + (run.optimizer.polyak is not None))
        grid = Table.grid(padding=(0, 2))
        rows = [
            ("data", f"{self.data.name} ({self.data.kind}): {counts} images, {memory}"),
            ("", *self.data.notes),
            ("classes", f"{len(names)}: {shown}"),
            (
                "model",
                f"{run.model} at {config.image_size[0]}x{config.image_size[1]}: "
                + (f"{config.num_tokens} tokens, " if isinstance(config, ViTConfig) else "")
                + f"{format_count(count_parameters(self.model))} parameters, "
                f"{format_count(forward_flops(config, head=True), 'FLOPs')} per image",
                *self._warnings(trainer),
            ),
            (
                "training",
                f"{trainer.total_steps:,} steps of {run.training.batch_size} images "
                f"({trainer.total_steps * run.training.batch_size / len(train):.1f} epochs), "
                f"{run.optimizer.optimizer}, rate {run.optimizer.learning_rate:g} {run.optimizer.schedule}, "
                f"seed {run.training.seed}; it ends with the "
                + ("best" if run.training.select == "best" and trainer.evaluator else "last")
                + " weights",
            ),
            ("device", f"{self.device}, {counted(torch.get_num_threads(), 'thread')}"),
            (
                "folder",
                f"{self.folder} (checkpoints of {format_bytes(state_bytes)} every "
                f"{run.training.checkpoint_every or trainer.evaluate_every} steps)",
            ),
            ("time", f"about {format_duration(seconds)} (measured on a few steps)"),
        ]
        if checkpoint is not None:
            rows.append(("resumed", f"from step {trainer.state.progress.step} ({checkpoint.name})"))
        for name, *lines in rows:
            for line in lines:
                grid.add_row(f"[bold]{name}[/]", escape(line))
                name = ""
        console.out.print(grid)

    def _warnings(self, trainer: Trainer) -> list[str]:
        """What is allowed but seldom meant."""
        config, warmup = self.model.config, self.run.optimizer.warmup_steps
        found = []
        if isinstance(config, ViTConfig) and config.backbone is None:
            lost = tuple(
                size % patch for size, patch in zip(config.image_size, config.patch_size, strict=True)
            )
        else:
            lost = (0, 0)  # a ResNet pads what its strides do not divide
        if any(lost):
            found.append(f"! {lost[0]} rows below and {lost[1]} columns at the right fill no patch: cut off")
        if warmup > trainer.total_steps / 2:
            found.append(
                f"! {warmup} of {trainer.total_steps} steps are warm-up: lower --warmup-steps or train on"
            )
        return found

    @contextmanager
    def _speed_log(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        started = time.monotonic()
        with open_to_append(self.folder / "speed.jsonl") as file:
            if file.tell():
                file.write("\n")  # the last line may have been cut short by a crash

            def log(line: dict[str, Any]) -> None:
                line["seconds"] = round(time.monotonic() - started, 3)
                file.write(json.dumps(line) + "\n")
                file.flush()

            yield log

    def _record_rejects(self) -> None:
        """Keep the names of unreadable files in the folder as they are found."""
        found = {split: dict(files) for split, files in self.rejects.items() if files}
        if self.record.rejects != found:
            self.record = replace(self.record, rejects=found)
            replace_json(self.folder / RECORD, to_json(self.record))

    def _say_rejects(self) -> None:
        for split, files in self.rejects.items():
            if files:
                console.out.print(
                    f"[yellow]{counted(len(files), 'image')} of {split} could not be read: see the report.[/]"
                )

    def _say_what_next(self) -> None:
        run = shlex.quote(str(self.folder))
        lines = [
            f"Next:    open {self.folder / 'report.html'} in a browser",
            f"         vitkit predict {run} IMAGE_OR_FOLDER",
            f"         vitkit inspect {run}",
        ]
        if self.run.data == "digits":
            lines.append("         vitkit train --recipe photos --data FOLDER_OF_YOUR_CLASS_FOLDERS")
        console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)


def _seconds_per_step(model: ImageModel, trainer: Trainer, batch_size: int) -> float:
    """Time of a step, from two passes of a copy of the model over a few images."""
    trial = copy.deepcopy(model).train()
    config = model.config
    count = min(batch_size, trainer.config.micro_batch_size or batch_size, 64)
    shape = (count, config.in_channels, *config.image_size)
    images = torch.zeros(shape, dtype=torch.uint8, device=trainer.device)
    nothing = torch.zeros(count, dtype=torch.int64, device=trainer.device)
    batch = Batch(images, nothing, nothing == 0, nothing)
    elapsed = 0.0
    with out_of_memory_explained(count, images.shape):
        for _ in range(2):  # the first one warms up
            started = time.monotonic()
            with trainer.autocast():
                loss, _metrics = trainer.objective(trial, batch)
            loss.backward()  # type: ignore[no-untyped-call]
            loss.item()
            elapsed = time.monotonic() - started
    return elapsed * batch_size / count
