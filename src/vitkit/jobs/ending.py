"""Finish a run: take the final weights, evaluate them, and check whether everything is there."""

from dataclasses import replace
from pathlib import Path

import torch

from vitkit._version import __version__
from vitkit.data.loader import worker_count
from vitkit.jobs.building import Parts
from vitkit.jobs.computing import prepare
from vitkit.jobs.evaluate import evaluate_split, find_training_images, with_repeats
from vitkit.jobs.listener import Listener
from vitkit.jobs.run_config import read_compute
from vitkit.jobs.run_folder import write_evaluation
from vitkit.jobs.starting_point import keep_damaged, model_is_whole
from vitkit.models.image_model import ImageModel
from vitkit.tasks import find_task
from vitkit.training.checkpoint import load_weights
from vitkit.training.checkpoint_files import FOLDER, find_damage, read_progress, step_name
from vitkit.training.ended import read_ended, remove_checkpoints
from vitkit.training.trainer import Trainer
from vitkit.weights.card import card_of

EVALUATED = ("val", "test")
"""The splits that a finished run is evaluated on, those of them that its data has; the test split only where
`TrainingConfig.evaluate_test` says so."""


def is_complete(parts: Parts, checkpoint: Path | None) -> bool:
    """Whether everything that a run ends with is there; the report is what is written last."""
    if checkpoint is None:
        finished = read_ended(parts.folder) is not None
    else:
        finished = read_progress(checkpoint).finished
    if not finished:
        return False
    evaluations = [f"evaluation/{split}.json" for split in _evaluated(parts)]
    names = ("model.safetensors", "model.json", *evaluations, "report.html")
    return all((parts.folder / name).exists() for name in names) and model_is_whole(parts.folder)


def tidy(folder: Path, finished: bool, listener: Listener) -> None:
    """Remove the checkpoints of a run that nothing continues; those of one that diverged are all it has."""
    if finished:
        try:
            remove_checkpoints(folder)
        except OSError as error:  # the series goes on without the room
            listener.note(f"The checkpoints of {folder} could not be removed: {error.strerror or error}.")


def take_final_weights(model: ImageModel, trainer: Trainer, listener: Listener) -> str:
    """Put the weights that a run ends with into its model, and write into its card which they are.

    Returns:
        A phrase that says which weights they are.
    """
    progress, config = trainer.state.progress, trainer.config
    kind = "weights" if trainer.state.average is None else "Polyak average"
    model.load_state_dict(trainer.evaluated_model.state_dict())
    which = f"{kind} of the last step, {progress.step}"
    best = progress.best_step
    if config.select == "best" and best not in (None, progress.step):
        checkpoint = trainer.run / FOLDER / step_name(best)
        reason = find_damage(checkpoint)
        if reason is None:
            model.load_state_dict(load_weights(checkpoint))
            which = f"{kind} of step {best}, the best validation"
        else:
            which += f", because {checkpoint.name}, the best validation, is not whole"
            keep_damaged({checkpoint: reason}, listener)
    card = card_of(model)
    origin = {**card.origin, "weights": which, "vitkit": __version__, "torch": torch.__version__}
    model.card = replace(card, origin=origin)
    model.eval()
    return which


def evaluate_finished(parts: Parts, device: torch.device, listener: Listener) -> None:
    """Evaluate the finished model on validation and test images, and keep what was found."""
    run, task = parts.run, find_task(parts.run.task)
    loading, training = run.loading, run.training
    repeated = find_training_images(parts.data, _evaluated(parts), listener)
    # As `vitkit evaluate` computes, so that it finds the same numbers; runs of the first version stay plain.
    exact = training.exact or read_compute(parts.folder) is None
    precision = prepare(parts.model, device, training.precision, exact, "evaluation")
    for split in _evaluated(parts):
        result, predictions = evaluate_split(
            parts.model,
            parts.data,
            split,
            device,
            parts.rejects.of_split(split),
            precision=precision,
            workers=worker_count(parts.data.splits[split], loading),
            worker_timeout=loading.worker_timeout,
            folder=parts.folder,
            listener=listener,
        )
        result = with_repeats(result, predictions, repeated, split, task, listener)
        write_evaluation(parts.folder, split, result, predictions)
        listener.show([(split, [task.line(result)])])


def _evaluated(parts: Parts) -> list[str]:
    """List the splits that a run is evaluated on when it has finished."""
    wanted = [split for split in EVALUATED if split != "test" or parts.run.training.evaluate_test]
    return [split for split in wanted if split in parts.data.splits]
