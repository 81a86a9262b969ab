"""Build the parts of a run from its configuration and its images: card, model, loader, trainer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from vitkit.config import to_json
from vitkit.data import sources
from vitkit.data.sources import ImageData, Samples
from vitkit.data.stream.loader import TrainLoader, evaluation_batches, worker_count
from vitkit.evaluation.fewshot.config import FewShotTracking, Method, linear_probe
from vitkit.listener import SILENT, Listener
from vitkit.models import image_model, zoo
from vitkit.models.build import build_empty, build_model
from vitkit.models.config import Compute
from vitkit.runs import machine, processes, records
from vitkit.runs.config import Run
from vitkit.runs.trained_model import RejectedFiles, require_same_images, run_card
from vitkit.tasks import find_task
from vitkit.tasks.learning import Validation
from vitkit.training.checkpoint import FOLDER, newest_first
from vitkit.training.config import ClassificationConfig, Sharding
from vitkit.training.evaluators import Evaluator
from vitkit.training.gradients import divide, places_of, step_seed
from vitkit.training.trainer import Trainer
from vitkit.weights.loading import fill
from vitkit.weights.model_card import card_of
from vitkit.world import ALONE, World, prepared_together, usable_processors


@dataclass(frozen=True)
class Parts:
    """The parts of a run: configuration, images, folder, model and rejected files, and who computes it."""

    run: Run
    data: ImageData
    folder: Path
    """The run folder, locked."""
    model: image_model.ImageModel
    """The model with its card; it is moved to the device when the trainer is built."""
    rejects: RejectedFiles
    device: torch.device
    """The device of this process."""
    world: World = ALONE
    """The processes that train together."""


def build_parts(
    run: Run,
    data: ImageData,
    folder: Path,
    listener: Listener,
    compute: Compute,
    config: zoo.ModelConfig,
    device: torch.device,
    start: records.StartRecord | None = None,
    world: World = ALONE,
) -> Parts:
    """Compare the images of a run with its record, and build its parts.

    The model of a run that begins from a start has no weights yet: `jobs.train_run` loads them.

    Args:
        run, data, folder, device, world: the fields of `Parts`.
        listener: hears the progress.
        compute: the way in which the model computes.
        config: of the model.
        start: the record of its start; None for new weights.

    Raises:
        VitkitError: the images have changed, or the record of them is damaged.
    """
    record = require_same_images(folder, data, data.fingerprint(), run.loading.check_images, listener)
    # The ways to compute are compared on the new weights where a checkpoint's are read later.
    drawn = start is None or bool(newest_first(folder / FOLDER))
    model = build_new(run, config, compute, listener, drawn)
    model.card = run_card(run, record, config, start)
    return Parts(run, data, folder, model, RejectedFiles(folder, record), device, world)


def build_new(
    run: Run, config: zoo.ModelConfig, compute: Compute, listener: Listener, drawn: bool = True
) -> image_model.ImageModel:
    """Build the model of a run with new weights.

    Args:
        run: its seed decides the weights.
        config: of the model.
        compute: the way in which it computes.
        listener: hears the progress.
        drawn: whether weights are drawn; else the model has room for weights that replace all of them.
    """
    with listener.progress("building the model"):
        if drawn:
            # A generator of its own: the weights follow from the seed alone.
            model = build_model(config, torch.Generator().manual_seed(run.training.seed))
        else:
            model = build_empty(config)
            # By `to_empty` PyTorch would import its compiler, for half a second.
            fill(model, {name: torch.empty(part.shape) for name, part in model.state_dict().items()})
        machine.compute_as(model, compute)
    return model


def read_images(parts: Parts, listener: Listener) -> Parts:
    """Decode the splits that fit into memory; images of the others are read as they are needed.

    Args:
        parts: of the run.
        listener: hears the progress.
    """
    loading, world = parts.run.loading, parts.world
    # The bytes of memory for the images of a split in each of the processes on a machine, which share it.
    limit, splits = int(loading.memory_gib * 2**30 / world.on_machine), dict[str, Samples]()
    for split, samples in parts.data.splits.items():
        if split == "test" and not parts.run.training.evaluate_test:  # nobody looks at them
            splits[split] = samples
            continue
        with listener.progress(f"reading {split} images") as progress:
            headers = partial(progress, detail="headers")
            splits[split] = loaded = sources.keep_in_memory(samples, limit, progress, headers)
        if loaded.held is None:
            largest, workers = sources.largest_decoding(loaded), worker_count(loaded, loading, world)
            warning = sources.check_decode_memory(largest, workers, machine.available_memory())
            if warning is not None:
                listener.warn(f"{split}: {warning}")
        elif loaded.held.bad:
            bad = {loaded.key(index): reason for index, reason in loaded.held.bad.items()}
            parts.rejects.of_split[split].update(bad)
    return replace(parts, data=replace(parts.data, splits=splits))


def build_trainer(parts: Parts, sharding: Sharding = "replicas", compares: bool = False) -> Trainer:
    """Move the model to its device, and build what trains it.

    Args:
        parts: of the run.
        sharding: the division of the state among the processes.
        compares: whether the chosen way to compute is compared with the plain one.

    Raises:
        VitkitError: the chosen way gives another result than the plain one.
    """
    run, data, learning = parts.run, parts.data, find_task(parts.run.task).learning
    device, world, mixes = parts.device, parts.world, getattr(parts.run.objective, "mixes", False)
    train = data.splits["train"]
    portions = divide(run.training.batch_size, run.training.micro_batch_size, world)
    with torch.random.fork_rng():
        # The objective's own weights follow from the run's seed alone, by a hash of it, so that they are
        # other numbers than the model's. No update has the number -1.
        torch.manual_seed(step_seed(run.training.seed, -1, 0))
        objective = learning.objective(run.objective, parts.model.config, train)
    parts.model.recompute = run.training.recompute
    chosen = parts.model.chosen
    if sharding != "replicas":
        machine.keep_freed_memory(False)
        # A sharded block is collected where it is called. The class token alone is computed by calls of the
        # parts of a block, a compiled block calls none of them, and a model in one graph calls no block.
        chosen = replace(chosen, last_block="every_token", block="modules", graph="eager")
    machine.compute_as(parts.model, chosen, objective)
    parts.model.to(device)
    if compares:
        with prepared_together(world):  # in all processes or in none, else those that go on would wait
            _compare_ways(parts, objective, sharding)
    loader = TrainLoader(
        train,
        run.preprocessing,
        run.augmentation,
        batch_size=run.training.batch_size,
        seed=run.training.seed,
        workers=worker_count(train, run.loading, world),
        bad_quota=run.loading.bad_quota,
        places=places_of(portions, mixes),
        worker_timeout=run.loading.worker_timeout,
        pinned=device.type == "cuda",
    )
    loader.rejects = parts.rejects.of_split["train"]  # files rejected before a resume count towards the quota
    # Where every core computes, writing a checkpoint beside the steps costs what waiting for it costs, and
    # its copy takes memory for nothing (docs/results/speed.md).
    computing = torch.get_num_threads() * world.on_machine
    has_idle = device.type != "cpu" or computing < usable_processors()
    return Trainer(
        parts.folder,
        parts.model,
        objective,
        loader,
        len(train),
        run.training,
        run.optimizer,
        build_evaluators(parts),
        learning.monitor if "val" in data.splits else None,
        configuration=to_json(run),
        mixes=mixes,
        world=world,
        spare_memory=machine.available_memory if has_idle else None,
        sharding=sharding,
    )


def _compare_ways(parts: Parts, objective: nn.Module, sharding: Sharding) -> None:
    """Refuse a run whose chosen way to compute gives another result than the plain one."""
    run, train, whole = parts.run, parts.data.splits["train"], parts.model

    def compare() -> None:
        count, model = min(machine.IMAGES, len(train)), whole
        (batch,) = evaluation_batches(train, run.preprocessing, count, indices=range(count))
        # A file that cannot be read is black here, and is compared on as any other image.
        batch = replace(batch, mask=torch.ones_like(batch.mask))
        if sharding != "replicas":
            # The whole model is divided because it hardly fits. Its blocks are alike: two stand for all.
            config = replace(model.config, depth=min(model.config.depth, 2))
            few = build_model(config, torch.Generator().manual_seed(0))
            machine.compute_as(few, model.chosen)
            model = few.to(model.pixel_mean.device)
        machine.require_same_gradients(model, objective, batch, run.training.total_steps(len(train)))

    if machine.is_plain(whole.chosen):
        return
    kind = type(objective)
    if not kind.__module__.startswith("vitkit."):  # an objective of somebody's own, which may change
        compare()
        return
    facts = [kind.__qualname__, to_json(run.objective), run.training.recompute, sharding]
    machine.compare_once(whole, [*facts, *sorted(machine.device_features(whole.pixel_mean.device))], compare)


def build_evaluators(parts: Parts) -> dict[str, Evaluator]:
    """Build the validation and the other evaluators of a run."""
    run, evaluators = parts.run, dict[str, Evaluator]()
    if "val" in parts.data.splits:
        evaluators |= find_task(run.task).learning.evaluators(build_validation(parts))
    own = card_of(parts.model).data
    followed: dict[str, tuple[FewShotTracking, Sequence[Method]]] = {}
    if run.fewshot.data:
        followed["fewshot"] = run.fewshot, ("ridge",)
        if not isinstance(run.objective, ClassificationConfig):
            # Without labels the features alone can be judged, so the methods that need no training do it.
            followed["fewshot"] = run.fewshot, ("ridge", "knn")
            followed["probe"] = linear_probe(run.fewshot.data), ("logistic",)
    for name, (tracked, methods) in followed.items():
        from vitkit.evaluation.features import FeatureExtractor  # most runs measure none
        from vitkit.evaluation.fewshot.methods import follow

        extractor_of = partial(
            FeatureExtractor,
            preprocessing=run.preprocessing,
            device=parts.device,
            precision=run.training.precision,
            batch_size=run.training.micro_batch_size or run.training.batch_size,
            workers=run.loading.workers or 0,
        )
        measure = follow(tracked, extractor_of, methods, () if own is None else (own,), parts.world)
        evaluators[name] = Evaluator(measure, tracked.every, tracked.line, together=True)
    return evaluators


def build_validation(parts: Parts) -> Validation:
    """Make the value by which the task measures a model on the validation images."""
    run, samples = parts.run, parts.data.splits["val"]
    reading = worker_count(samples, run.loading, parts.world)
    batches = partial(
        evaluation_batches,
        samples,
        run.preprocessing,
        run.training.micro_batch_size or run.training.batch_size,
        reading,
        parts.rejects.of_split["val"],
        worker_timeout=run.loading.worker_timeout,
    )
    names, precision = parts.data.class_names, parts.model.chosen.precision
    return Validation(run.objective, names, batches, parts.device, precision, parts.world)


def begin_steps(
    parts: Parts, checkpoint: Path | None, listener: Listener = SILENT, sharding: Sharding = "replicas"
) -> tuple[Trainer, list[str], Parts]:
    """Read the images of a run and build what trains it, in all processes alike.

    Args:
        parts: the parts of the run; the model of process 0 has the weights that the run begins with.
        checkpoint: from which it continues; None: all begin with the weights of process 0.
        listener: hears the progress.
        sharding: the division of the state among the processes.

    Returns:
        The trainer, a sentence for each difference from where the checkpoint was written, and the parts with
        their images.
    """
    world = parts.world
    if world.size > 1:
        processes.limit_waiting()
    parts = read_images(parts, listener)
    parts.data.shared.pixels.clear()  # those of splits that do not fit, or are not read
    if world.size > 1 and checkpoint is None:  # before the weights are divided
        world.share(list(parts.model.state_dict().values()))
    trainer, differences = build_trainer(parts, sharding, compares=True), []
    if checkpoint is not None:
        with listener.progress("reading the checkpoint"):
            differences = trainer.resume(checkpoint)
    elif world.size > 1:
        modules = (trainer.state.objective, trainer.state.averaged_objective)
        world.share([tensor for module in modules if module for tensor in module.state_dict().values()])
    if world.size > 1:
        processes.limit_waiting(parts.run.loading.step_timeout)
    return trainer, differences, parts
