"""One run from its first screen to its report, built from its configuration."""

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
from torch import nn

from vitkit._version import __version__
from vitkit.cli import console
from vitkit.cli.listener import TerminalListener
from vitkit.config import to_json
from vitkit.data.loader import (
    MemorySamples,
    TrainLoader,
    check_decode_memory,
    evaluation_batches,
    keep_in_memory,
    largest_decoding,
)
from vitkit.data.sources import ImageData
from vitkit.evaluation.classify import classification, predict
from vitkit.jobs.data_record import check_data
from vitkit.jobs.evaluate import evaluate_split
from vitkit.jobs.first_screen import Prospect, first_screen, measure_step
from vitkit.jobs.machine import InterruptedTraining, available_memory, memory_used
from vitkit.jobs.rejected_files import RejectedFiles
from vitkit.jobs.run_config import Run
from vitkit.jobs.run_folder import run_origin, write_evaluation
from vitkit.jobs.starting_point import (
    keep_damaged,
    model_is_whole,
    name_what_was_set_aside,
    starting_point,
)
from vitkit.jobs.write_report import write_report
from vitkit.models.card import ModelCard
from vitkit.models.zoo import build_model
from vitkit.signals import StopRequest, StopSignals, stop_signals
from vitkit.text import format_bytes
from vitkit.training.checkpoint import load_weights
from vitkit.training.checkpoint_files import FOLDER, damage, read_progress, step_name
from vitkit.training.objectives import Classification
from vitkit.training.trainer import Trainer
from vitkit.weights import save_model


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
        record = check_data(folder, data, fingerprint, run.loading.check_images)
        self.rejects = RejectedFiles(folder, record)
        config = run.architecture.of(run.model, len(data.class_names), run.preprocessing)
        generator = torch.Generator().manual_seed(run.training.seed)
        self.model = build_model(config, generator)
        self.model.card = ModelCard(
            name=run.model,
            class_names=data.class_names,
            preprocessing=to_json(run.preprocessing),
            augmentation=to_json(run.augmentation),
            origin=run_origin(run, data, fingerprint),
        )

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
        self.rejects.write()
        self.rejects.tell(TerminalListener())
        report = write_report(self.folder)
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
                self.rejects.of(split).update(found)
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
        self.loader.rejects = self.rejects.of("train")
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
            self.rejects.of("val"),
            worker_timeout=self.run.loading.worker_timeout,
        )
        # The loss is the objective's without smoothing and mixup; of the logits nothing else is needed.
        predictions = predict(
            model, batches, device=self.device, loss=self.run.objective.loss, keep_logits=False
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
                    self.rejects.write()
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
        origin = {
            **self.model.card.origin,
            "weights": which,
            "vitkit": __version__,
            "torch": torch.__version__,
        }
        self.model.card = replace(self.model.card, origin=origin)
        self.model.eval()
        return which

    def _evaluate(self, weights: str) -> None:
        for split in ("val", "test"):
            if split not in self.data.splits:
                continue
            rejects = self.rejects.of(split)
            workers = self.run.loading.workers_for(self.data.splits[split])
            result, predictions = evaluate_split(
                self.model,
                self.data,
                split,
                self.device,
                rejects,
                workers=workers,
                worker_timeout=self.run.loading.worker_timeout,
                folder=self.folder,
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
        prospect = Prospect(
            self.folder,
            str(self.device),
            torch.get_num_threads(),
            measure_step(self.model, trainer, self.run.training.batch_size),
            trainer.state.progress.step,
            None if checkpoint is None else checkpoint.name,
        )
        TerminalListener().show(first_screen(self.run, self.data, self.model, prospect))

    @contextmanager
    def _speed_log(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        started = time.monotonic()
        with (self.folder / "speed.jsonl").open("a", encoding="utf-8") as file:
            if file.tell():
                file.write("\n")  # the last line may have been cut short by a crash

            def log(line: dict[str, Any]) -> None:
                line["seconds"] = round(time.monotonic() - started, 3)
                file.write(json.dumps(line) + "\n")
                file.flush()

            yield log

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
