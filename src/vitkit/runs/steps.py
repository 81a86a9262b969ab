"""Run the steps of training to the last one: report, log, and stop where nothing is lost.

Then finish the run: take the final weights, teach the model which images are none of its classes, evaluate
it, and check whether its files are complete.

speed.jsonl   images/s and memory by the clock, at the steps of the metrics log; of several processes also the
              slowest, and the fraction of the time that another waits for it
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit._version import __version__
from vitkit.data.config import WORKER_TIMEOUT, parse_split
from vitkit.data.layouts.repeats import describe_repeats, repeats_of_training
from vitkit.data.listing import class_numbers
from vitkit.data.sources import ImageData
from vitkit.data.stream.loader import evaluation_batches, worker_count
from vitkit.durable import open_to_append
from vitkit.engines.folder import EngineModel
from vitkit.errors import VitkitError
from vitkit.evaluation import refusal, run_model
from vitkit.evaluation.features import FeatureExtractor
from vitkit.listener import SILENT, Listener, added_up
from vitkit.models.config import Levels, Precision, Refusal
from vitkit.models.image_model import ImageModel
from vitkit.models.novelty import Novelty
from vitkit.runs import build, machine
from vitkit.runs.start import model_is_whole, tell_damage
from vitkit.runs.trained_model import RejectedFiles, write_evaluation, write_examples, write_refusal
from vitkit.signals import StopSignals
from vitkit.tasks import Answering, answering_of, find_task
from vitkit.text import format_bytes, format_duration, pluralize, tree_levels
from vitkit.training import checkpoint as checkpoints
from vitkit.training import gradients
from vitkit.training.checkpoint import FOLDER
from vitkit.training.trainer import Trainer
from vitkit.weights.model_card import card_of, preprocessing_of
from vitkit.world import ALONE, World, prepared_together

EXAMPLES = 8
"""Images in the picture of a model's predictions."""
SOON = 60.0
"""Seconds to the first validation within which it is waited for before a run says how long it takes."""
EVALUATED = ("val", "test")
"""The splits that a finished run is evaluated on, where its data has them; the test split only with
`TrainingConfig.evaluate_test`."""


def fit(trainer: Trainer, rejects: RejectedFiles, stop: StopSignals, listener: Listener) -> None:
    """Train to the end.

    Args:
        trainer: of the run, at step 0 or resumed.
        rejects: the files that cannot be read, recorded at every checkpoint.
        stop: the signals that stop it; its point is updated at every checkpoint.
        listener: hears every step.

    Raises:
        StopRequest: a signal stopped it; the current step is finished and committed.
        VitkitError: as `Trainer.fit`.
    """
    batch_size, log_every, device = trainer.config.batch_size, trainer.config.log_every, trainer.device
    start, world = trainer.state.progress.step, trainer.world
    lines = dict.fromkeys(trainer.evaluators, "")  # the last result of each evaluator, as a short text
    with (
        listener.progress("training", trainer.total_steps) as progress,
        listener.run(trainer.run, start, trainer.total_steps) as hear_metrics,
        stop.held(),
        speed_log(trainer.run) if world.writes else nullcontext(lambda line: None) as log,
        ExitStack() as stack,
    ):
        if start:
            progress(start)
        else:
            stop.point = "before the first checkpoint was committed"
        seconds, steps, estimated = 0.0, 0, False  # the first two since the last line of the speed log
        memory = 0  # the peak so far, asked for at the first step and at each line of the log
        first_ended = time.monotonic()
        began, waited_before = time.monotonic(), world.activity.waited
        # Closed where an error ends the loop: a background save must end before the folder is unlocked.
        reports = stack.enter_context(closing(trainer.fit(lambda: stop.number is not None)))
        for report in reports:
            steps, seconds = steps + 1, seconds + report.seconds
            # Without the first step of a session, which takes memory and is slower.
            done = report.step - start - 1
            if not done:
                first_ended = time.monotonic()
            # A validation and a checkpoint that come soon are waited for, so that they count. Minutes that
            # were asked for are shown.
            soon = bool(trainer.evaluators) and trainer.evaluate_every * report.seconds < SOON
            if done > 0 and not estimated and (report.measured or not soon):
                estimated = True
                if not report.finished and trainer.config.minutes is None:
                    each = (time.monotonic() - first_ended) / done
                    left = format_duration((trainer.total_steps - report.step) * each)
                    listener.show([("time", [f"about {left} left (measured on {pluralize(done, 'step')})"])])
            rejects.share(world)
            for name, numbers in report.measured.items():
                lines[name] = trainer.evaluators[name].line(numbers)
            for logged in report.logged:
                hear_metrics(logged)
            shown = "".join(f"  {line}" for line in lines.values() if line)
            speed = steps * batch_size / max(seconds, 1e-9)  # never a division by zero
            logs = report.step % log_every == 0 or report.finished
            if logs or not memory:  # on some systems the question takes a hundredth of a small model's step
                memory = machine.memory_used(device)
            pace = f"{speed:,.0f} images/s  {format_bytes(memory)}"
            detail = f"loss {report.loss:.3f}  {pace}{shown}{_standing(trainer, report.step)}"
            progress(report.step, detail=detail, milestone=bool(report.measured))
            if report.lowered_to is not None:
                listener.warn(
                    f"Out of memory at step {report.step}: from here on {report.lowered_to} images are "
                    f"computed at a time, and gradients are summed up to the same batch of {batch_size}."
                )
            if report.checkpoint is not None:
                committed = checkpoints.step_of(report.checkpoint)
                stop.point = f"at step {committed} of {trainer.total_steps}, which is committed"
                if stop.number is not None:
                    stop.let_nothing_interrupt()
                if world.writes:
                    rejects.write()
            if logs:
                line = {"step": report.step, "images_per_second": round(speed, 1), "memory_bytes": memory}
                # By all processes, also where the log goes nowhere: each must give its waiting time.
                log(line | _waiting(world, began, waited_before))
                seconds, steps = 0.0, 0
                began, waited_before = time.monotonic(), world.activity.waited


def _standing(trainer: Trainer, step: int) -> str:
    """Give the best validation so far, and name the evaluators that measure after the next step, during which
    the progress does not move.

    Args:
        trainer: of the run.
        step: the steps that are made.
    """
    monitor, progress, best = trainer.monitor, trainer.state.progress, ""
    if monitor is not None and progress.best_value is not None:
        # A maximised value is a fraction of right answers, a minimised value is a loss.
        value = f"{progress.best_value:.1%}" if monitor.direction == "max" else f"{progress.best_value:.3f}"
        best = f"  best {value} at step {progress.best_step:,}"
    every = {name: own.every or trainer.evaluate_every for name, own in trainer.evaluators.items()}
    is_last = step + 1 == trainer.total_steps
    due = [name for name, interval in every.items() if is_last or (step + 1) % interval == 0]
    return best + (f"  {' and '.join(due)} next" if due and step < trainer.total_steps else "")


def _waiting(world: World, began: float, waited_before: float) -> dict[str, float]:
    """Find the slowest of several processes, and the time that others wait for it.

    Args:
        world: the processes.
        began: the start of the time that is looked at, by `time.monotonic`.
        waited_before: seconds that this process had waited for others by then.

    Returns:
        The number of the slowest process, which waits least, and the largest fraction of the time that
        another waited; nothing for a process alone.
    """
    if world.size == 1:
        return {}
    waits = world.gather(world.activity.waited - waited_before)
    fraction = max(waits) / max(time.monotonic() - began, 1e-9)
    return {"slowest_process": waits.index(min(waits)), "waiting": round(min(fraction, 1.0), 3)}


@contextmanager
def speed_log(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open the speed log of a run folder; each line gets the seconds since then."""
    started = time.monotonic()
    with open_to_append(folder / "speed.jsonl") as file:
        if file.tell():
            file.write("\n")  # the last line may have been cut short by a crash; empty lines mean nothing

        def log(line: dict[str, Any]) -> None:
            line["seconds"] = round(time.monotonic() - started, 3)
            file.write(json.dumps(line) + "\n")
            file.flush()

        yield log


def is_complete(parts: build.Parts, checkpoint: Path | None) -> bool:
    """Whether a run has finished and its files are complete; the report is written last."""
    if not (parts.folder / "report.html").exists():
        return False
    if checkpoint is None and checkpoints.read_ended(parts.folder) is None:
        return False
    if checkpoint is not None and not checkpoints.read_progress(checkpoint).finished:
        return False
    names = ("model.safetensors", "model.json", *(f"evaluation/{split}.json" for split in _evaluated(parts)))
    return all((parts.folder / name).exists() for name in names) and model_is_whole(parts.folder)


def tidy(folder: Path, listener: Listener) -> None:
    """Remove the checkpoints of a finished run of a series, and record that it has ended."""
    try:
        checkpoints.remove_checkpoints(folder)
    except OSError as error:  # the series goes on without the space
        listener.note(f"The checkpoints of {folder} could not be removed: {error.strerror or error}.")


def take_final_weights(model: ImageModel, trainer: Trainer, listener: Listener) -> tuple[ImageModel, str]:
    """Load the final weights of a run into its model, and name them in its card.

    Returns:
        The model, a new one where the run's is sharded, and a phrase that names the weights.
    """
    progress, config = trainer.state.progress, trainer.config
    kind = "weights" if trainer.state.average is None else "Polyak average"
    if trainer.skeleton is None:
        model.load_state_dict(trainer.evaluated_model.state_dict())
    else:  # this process alone cannot collect the weights; the last checkpoint has all of them
        last = checkpoints.load_weights(trainer.run / FOLDER / checkpoints.step_name(progress.step))
        model = gradients.assemble(trainer.skeleton, last, trainer.device)
    which = f"{kind} of the last step, {progress.step}"
    best = progress.best_step
    if config.select == "best" and best not in (None, progress.step):
        checkpoint = trainer.run / FOLDER / checkpoints.step_name(best)
        reason = checkpoints.find_damage(checkpoint)
        if reason is None:
            model.load_state_dict(checkpoints.load_weights(checkpoint))
            if state := checkpoints.load_objective(checkpoint):
                trainer.evaluated_objective.load_state_dict(state)
            which = f"{kind} of step {best}, the best validation"
        else:
            which += f", because {checkpoint.name}, the best validation, is not whole"
            if checkpoint.exists():  # else it was set aside before
                tell_damage(checkpoint, reason, checkpoints.set_aside(checkpoint), listener)
    card = card_of(model)
    origin = {**card.origin, "weights": which, "vitkit": __version__, "torch": torch.__version__}
    model.card = replace(card, origin=origin)
    return model.eval(), which


def learn_refusal(parts: build.Parts, precision: Precision, listener: Listener) -> None:
    """Give a trained model its `Novelty`, and count on held-out images what an unusual score is; by the same
    images choose the thresholds of its levels, if its classes have any.

    The held-out images are those of the test split, which no choice was made by; else of the validation
    split, which chose the weights: the share that is refused may then be somewhat larger, and that of wrong
    answers too. A model without either, or of a task with several labels, refuses nothing, and is sure of
    nothing.

    Args:
        parts: of the run, with its final weights on the device.
        precision: that it is evaluated in.
        listener: hears the progress, and why nothing is refused.
    """
    model, run, splits, names = parts.model, parts.run, parts.data.splits, parts.data.class_names
    held_out = "test" if "test" in splits else "val"
    if run.task != "classification" or not run.training.evaluate_test:  # a run to choose options by
        return
    # Those of its start, if any, were chosen for other weights.
    learned = Levels((None,) * len(tree_levels(names))) if run.splits.levels else None
    model.card = replace(card_of(model), levels=learned)
    if held_out not in splits:
        if learned is not None:
            listener.note("The model is sure of no level: no images are held out to choose thresholds by.")
        return
    extractor = FeatureExtractor(model, preprocessing_of(model), parts.device, precision)

    def compute(split: str, most: int) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        samples = splits[split]
        indices = samples.spread(most)
        reading = replace(extractor, workers=worker_count(samples, run.loading))
        what = {"train": "training", "val": "validation"}.get(split, split)
        with listener.progress(f"features of {what} images", len(indices)) as progress:
            features = reading.compute(samples, indices, progress)
        readable = indices[features.readable]
        return features.rows, class_numbers(samples.labels)[readable], readable

    try:
        rows, labels, _ = compute("train", max(refusal.MOST_TRAINING, 10 * len(names)))
        own, own_labels, indices = compute(held_out, refusal.MOST_HELD_OUT)
        # The scales may not come from the images that the threshold is counted on.
        scaled = (
            rows if held_out == "val" or "val" not in splits else compute("val", refusal.MOST_HELD_OUT)[0]
        )
    except VitkitError as error:
        listener.note(f"No image is refused as none of the classes: {error}")
        return
    answering = answering_of(model.card)
    model.card = answering.learn_levels(_head_logits(model, own), own_labels, model.card, held_out)
    if lines := answering.describe_levels(model.card):
        listener.show([("levels", lines)])
    if len(own) < refusal.FEWEST or not np.bincount(labels, minlength=len(names)).all():
        listener.note(
            f"No image is refused as none of the classes: that takes {refusal.FEWEST} {held_out} images and "
            f"a training image of each class, found {len(own)}."
        )
        return
    novelty = _give_novelty(model, rows, labels, scaled)
    with torch.inference_mode():
        features = torch.from_numpy(own).to(model.pixel_mean)
        scores = novelty(features, model.head(features)).cpu().numpy().astype(np.float64)
    recorded = Refusal(held_out, tuple(np.sort(scores).tolist()))
    model.card = replace(card_of(model), refusal=recorded)
    record = refusal.count_refused(recorded, scores, own_labels, names)
    strangest = tuple(indices[[*record.strangest]].tolist())
    write_refusal(parts.folder, replace(record, strangest=strangest), listener)


def _give_novelty(
    model: ImageModel, rows: NDArray[np.float32], labels: NDArray[np.int64], others: NDArray[np.float32]
) -> Novelty:
    """Give a model its `Novelty`, and return it.

    Args:
        model: with a head of K classes.
        rows: `(N, D)`, features of training images, some of each class.
        labels: `(N,)`.
        others: `(M, D)`, features of images of the same kind, by which distance and energy are scaled.
    """
    parts = refusal.fit_statistics(rows, labels, model.config.num_classes)
    tensors = {name: torch.from_numpy(part).to(model.pixel_mean.device) for name, part in parts.items()}
    novelty = model.novelty = Novelty(**tensors, scales=torch.ones(2, device=model.pixel_mean.device))
    with torch.inference_mode():
        distances = novelty.distances(torch.from_numpy(others).to(model.pixel_mean)).amin(1).cpu().numpy()
    energy = np.logaddexp.reduce(_head_logits(model, others).astype(np.float64), axis=1)
    # Images that are all alike have no deviation.
    scales = [max(float(values.std()), 1e-6) for values in (distances.astype(np.float64), energy)]
    novelty.scales.copy_(torch.tensor(scales))
    return novelty


@torch.inference_mode()
def _head_logits(model: ImageModel, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute logits `(N, K)` of features `(N, D)`."""
    logits = model.head(torch.from_numpy(rows).to(model.pixel_mean))
    return np.asarray(logits.float().cpu().numpy(), np.float32)


def evaluate_finished(parts: build.Parts, listener: Listener) -> None:
    """Evaluate the finished model on validation and test images, and write the evaluations."""
    run, answering = parts.run, find_task(parts.run.task).answering
    if answering is None:
        return
    loading, training, data = run.loading, run.training, parts.data
    with listener.progress("looking for training images among the others"):
        repeated = repeats_of_training(data.splits, _evaluated(parts), data.same, data.shared.digests)
    # As `vitkit evaluate` computes, so that both get the same numbers.
    precision = machine.prepare(parts.model, training.precision, training.exact, "evaluation")
    for split in _evaluated(parts):
        result, predictions = evaluate_split(
            parts.model,
            parts.data,
            split,
            parts.device,
            parts.rejects.of_split[split],
            precision=precision,
            workers=worker_count(parts.data.splits[split], loading),
            worker_timeout=loading.worker_timeout,
            folder=parts.folder,
            listener=listener,
            own=True,
        )
        result = with_repeats(result, predictions, repeated, split, answering, listener)
        write_evaluation(parts.folder, split, result, predictions)
        listener.show([(split, [result.summary()])])


def keep_examples(parts: build.Parts, objective: nn.Module, listener: Listener) -> None:
    """Draw the predictions of a task without answers on some validation images, else on training images.

    Args:
        parts: of the run that has finished.
        objective: trained with the model.
        listener: hears the path of the picture.
    """
    task, splits = find_task(parts.run.task), parts.data.splits
    if task.answering is not None:
        return
    samples = splits.get("val", splits["train"])
    some, rule = samples.spread(EXAMPLES), preprocessing_of(parts.model)
    (batch,) = evaluation_batches(samples, rule, EXAMPLES, indices=some)
    if batch.mask.any():
        picture = task.learning.examples(parts.model, objective, batch.images[batch.mask].to(parts.device))
        if picture is not None:
            listener.show([("examples", [str(write_examples(parts.folder, picture))])])


def _evaluated(parts: build.Parts) -> list[str]:
    """List the splits that a run is evaluated on when it has finished; none for a task without answers."""
    if find_task(parts.run.task).answering is None:
        return []
    splits = [split for split in EVALUATED if split != "test" or parts.run.training.evaluate_test]
    return [split for split in splits if split in parts.data.splits]


def with_repeats(
    result: Any,
    predictions: Any,
    repeated: Mapping[str, NDArray[np.int64]],
    split: str,
    answering: Answering,
    listener: Listener = SILENT,
    shown: str = "",
    where: str = "train",
) -> Any:
    """Add to the result of a split the numbers without training images, and warn of them.

    Args:
        result, predictions, split, answering: the numbers, the predictions they are counted from, the name of
            the split, and the task's answering half.
        repeated: the images of each split that are training images.
        listener: is warned.
        shown: the split's name in the warning; left out, `split`.
        where: the training images' name in the warning.
    """
    if split not in repeated:
        return result
    rows, shown = repeated[split], shown or split
    if len(rows):
        listener.warn(f"{describe_repeats(len(rows), shown, where)}: the figures for {shown} are too good.")
    return answering.mark_repeats(result, predictions, rows)


def evaluate_split(
    model: ImageModel | EngineModel,
    data: ImageData,
    split: str,
    device: torch.device | str,
    rejects: dict[str, str],
    *,
    batch_size: int = 128,
    workers: int = 0,
    worker_timeout: float = WORKER_TIMEOUT,
    precision: Precision = "auto",
    folder: Path | None = None,
    listener: Listener = SILENT,
    world: World = ALONE,
    own: bool = False,
) -> tuple[Any, Any]:
    """Evaluate a model by its task on every image of a split; unreadable files are added to `rejects`.

    Of its `own` images, those that it was trained with, one split may have chosen its thresholds.

    Logits that do not fit into memory are written to a file in `folder`, or in the system's folder for
    temporary files. The processes of a `world` compute different batches, and all get the same results.

    Returns:
        The task's numbers, and the predictions that they are counted from.
    """
    samples, answering, rule = data.splits[split], answering_of(model.card), preprocessing_of(model)
    batches = evaluation_batches(
        samples, rule, batch_size, workers, rejects, worker_timeout=worker_timeout, world=world
    )
    with listener.progress(f"evaluating {split}", len(samples)) as progress, prepared_together(world):
        predictions = run_model.predict(
            model,
            batches,
            loss=model.card.loss,
            device=device,
            precision=precision,
            progress=added_up(progress),
            folder=folder,
            world=world,
        )
    for unreadable in world.gather(rejects):
        rejects.update(unreadable)
    result, learned = answering.measure(predictions, data.class_names), model.card.levels
    same = own and learned is not None and parse_split(split)[0] == learned.split
    return answering.mark_levels(result, predictions, model.card, same), predictions
