"""The parts of a run, built from its configuration and its images: card, model, loader, trainer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vitkit.config import to_json
from vitkit.data.loader import (
    Batch,
    MemorySamples,
    TrainLoader,
    check_decode_memory,
    evaluation_batches,
    keep_in_memory,
    largest_decoding,
    worker_count,
)
from vitkit.data.sources import ImageData
from vitkit.jobs.data_record import check_data
from vitkit.jobs.listener import Listener
from vitkit.jobs.machine import available_memory
from vitkit.jobs.rejected_files import RejectedFiles
from vitkit.jobs.run_config import Run
from vitkit.jobs.run_folder import run_card
from vitkit.jobs.start import StartRecord, read_start_record, with_start
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.zoo import ModelConfig
from vitkit.tasks import find_task
from vitkit.tasks.task import Validation
from vitkit.training.trainer import Trainer
from vitkit.weights.card import card_of


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    run: Run
    data: ImageData
    folder: Path
    """The run folder, locked."""
    model: ImageModel
    """With its card; on the device from when the trainer is built."""
    rejects: RejectedFiles
    start: StartRecord | None = None
    """What the run begins from; None for new weights."""


def build_parts(
    run: Run, data: ImageData, folder: Path, listener: Listener, start: StartRecord | None = None
) -> Parts:
    """Build the parts of a run, once its images are known to be those it began with.

    The model's weights are new ones, whatever the run begins from: `jobs.train` decides that.

    Raises:
        VitkitError: the images are others, or the record of them is damaged.
    """
    start = None if start is None else read_start_record(folder) or start
    fingerprint = data.fingerprint()
    record = check_data(folder, data, fingerprint, run.loading.check_images, listener)
    config = model_config_of(run, len(data.class_names), start)
    with listener.progress("building the model"):
        # A generator of its own: the weights follow from the seed alone, whatever was drawn before.
        model = build_model(config, torch.Generator().manual_seed(run.training.seed))
    model.card = run_card(run, data, fingerprint)
    if start is not None:
        model.card = with_start(card_of(model), start)
    return Parts(run, data, folder, model, RejectedFiles(folder, record), start)


def model_config_of(run: Run, num_classes: int, start: StartRecord | None) -> ModelConfig:
    """Give the configuration of a run's model: its start's, else that of the name."""
    if start is not None:
        return start.config
    return run.architecture.of(run.model, num_classes, run.preprocessing)


def read_images(parts: Parts, listener: Listener) -> Parts:
    """Decode small splits once; what is too large is read as it is needed."""
    loading = parts.run.loading
    limit, splits = int(loading.memory_gib * 2**30), {}
    for split, samples in parts.data.splits.items():
        with listener.progress(f"reading {split} images") as progress:
            headers = partial(progress, detail="headers")
            splits[split] = kept = keep_in_memory(samples, limit, progress, headers)
        if not isinstance(kept, MemorySamples):
            warning = check_decode_memory(
                largest_decoding(kept), worker_count(kept, loading), available_memory()
            )
            if warning is not None:
                listener.warn(f"{split}: {warning}")
        elif kept.bad:
            found = {kept.key(index): reason for index, reason in kept.bad.items()}
            parts.rejects.of(split).update(found)
    return replace(parts, data=replace(parts.data, splits=splits))


def build_trainer(parts: Parts, device: torch.device) -> Trainer:
    """Move the model to its device and build what trains it."""
    run, data = parts.run, parts.data
    task = find_task(run.task)
    validated = "val" in data.splits
    return Trainer(
        parts.folder,
        parts.model.to(device),
        task.objective(run.objective, len(data.class_names)),
        build_loader(parts),
        len(data.splits["train"]),
        run.training,
        run.optimizer,
        task.evaluators(build_validation(parts, device)) if validated else None,
        task.monitor if validated else None,
        configuration=to_json(run),
    )


def build_loader(parts: Parts) -> TrainLoader:
    """Build the stream of training images; it adds the files that it cannot read to the rejected ones."""
    run, train = parts.run, parts.data.splits["train"]
    loader = TrainLoader(
        train,
        run.preprocessing,
        run.augmentation,
        batch_size=run.training.batch_size,
        seed=run.training.seed,
        workers=worker_count(train, run.loading),
        bad_quota=run.loading.bad_quota,
        worker_timeout=run.loading.worker_timeout,
    )
    loader.rejects = parts.rejects.of("train")  # those of before count towards the quota
    return loader


def build_validation(parts: Parts, device: torch.device) -> Validation:
    """Give the task what it needs to measure a model on the validation images."""
    run, samples = parts.run, parts.data.splits["val"]

    def batches() -> Iterator[Batch]:
        return evaluation_batches(
            samples,
            run.preprocessing,
            run.training.micro_batch_size or run.training.batch_size,
            worker_count(samples, run.loading),
            parts.rejects.of("val"),
            worker_timeout=run.loading.worker_timeout,
        )

    return Validation(run.objective, parts.data.class_names, batches, device, run.training.precision)
