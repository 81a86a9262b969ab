"""The model of a run, wherever the run stands: finished, still going, or stopped.

A run that has not finished has no `model.safetensors`; the best of its committed checkpoints is used, which
is the last one where the run ends with its last weights. The run is only read: neither its lock nor any of
its files is touched, and a process that trains in it may remove a checkpoint while it is read.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from torch import Tensor

from vitkit.engines.folder import refuse_engine_folder
from vitkit.errors import VitkitError
from vitkit.jobs.data_record import find_data, read_record
from vitkit.jobs.run_config import is_unfinished, read_run
from vitkit.jobs.run_folder import run_card
from vitkit.jobs.series_record import require_model
from vitkit.jobs.start import run_model
from vitkit.models.image_model import ImageModel
from vitkit.models.pool import current_name
from vitkit.models.vit_config import Interpolation
from vitkit.training.checkpoint import load_weights, weights_file
from vitkit.training.checkpoint_files import (
    FOLDER,
    UnreadableError,
    commit_size,
    find_damage,
    newest_first,
    read_progress,
    step_name,
)
from vitkit.weights import Identity, Loaded, LoadOptions, identify, load
from vitkit.weights.card import card_of
from vitkit.weights.loading import fit_to_options, log_notes

TRIES = 20
"""The number of times that checkpoints are listed again because one was removed while it was read."""


@dataclass(frozen=True)
class Snapshot:
    """Weights of a run that has not finished."""

    file: Path
    step: int
    is_best: bool
    """Whether it is that of the best validation so far, and not just the last."""
    tensors: dict[str, Tensor]

    def __str__(self) -> str:
        which = "the best validation so far" if self.is_best else "the last committed"
        return f"step {self.step:,}, {which}"


def load_any(path: str | Path, options: LoadOptions | None = None) -> Loaded:
    """Load a checkpoint as `vitkit.weights.load` does, or the model of a run that has not finished.

    Args:
        path: as for `vitkit.load_model`.
        options: left out, the checkpoint as it is.

    Raises:
        VitkitError: as `vitkit.load_model`; or the run has no checkpoint yet, or none that is whole.
    """
    require_model(path)
    refuse_engine_folder(path)
    if not is_unfinished(path):
        loaded = load(path, options)
        loaded.model.card = find_data(card_of(loaded.model), path)
        return replace(loaded, identity=replace(loaded.identity, card=loaded.model.card))
    folder, options = Path(path), options or LoadOptions()
    found = read_snapshot(folder)
    identity = _identity(folder, found)
    if options.num_heads not in (None, identity.config.num_heads):
        raise VitkitError(
            f"{folder} says that it has {identity.config.num_heads} attention heads, not "
            f"{options.num_heads}: leave out num_heads (--num-heads)."
        )
    tensors = {current_name(key): value for key, value in found.tensors.items()}  # checkpoints of early runs
    return fit_to_options(folder, identity, tensors, options)


def identify_any(
    path: str | Path, image_size: tuple[int, int] | None = None, num_heads: int | None = None
) -> Identity:
    """Find out what a checkpoint is, as `vitkit.weights.identify` does, or a run that has not finished.

    Raises:
        VitkitError: as `load_any`.
    """
    require_model(path)
    refuse_engine_folder(path)
    if is_unfinished(path):
        return _identity(Path(path), read_snapshot(Path(path)))
    identity = identify(path, image_size, num_heads)
    return replace(identity, card=find_data(identity.card, path))


def load_model(
    path: str | Path,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    *,
    head: Literal["keep", "new"] | None = None,
    num_heads: int | None = None,
    interpolation: Interpolation = "original",
    image_mean: tuple[float, ...] | None = None,
    image_std: tuple[float, ...] | None = None,
) -> ImageModel:
    """Load a model with the weights of a checkpoint; what the user should know of it is logged as warnings.

    Args:
        path: a run folder, of a run that has not finished too, whose best committed checkpoint is taken; or
            a file or folder of any known format: vitkit's, the original release's, timm's and so on; or an
            address, `hf:org/name`, `https://...`, `gs://...`, which is fetched and kept.
        num_classes: the number of logits; left out, the head stays as it is.
        image_size: pixels, one number or `(height, width)`; left out, the size of the weights. Another one
            resizes the position embeddings (paper 3.2).
        head: "keep" the whole head, the tanh layer with it; or "new", the original's rule for fine-tuning:
            the tanh layer is dropped and the head is a new linear layer of zeros. Left out: kept, unless
            `num_classes` is another number than the file's.
        num_heads: heads of the attention, where a file does not record them.
        interpolation: the rule by which position embeddings are resized.
        image_mean, image_std: mean and standard deviation of pixels in [0, 1], a value for each channel or
            one for all. They replace those that the file records.

    Returns:
        The model in evaluation mode, with its card.

    Raises:
        VitkitError: no checkpoint there, one of another architecture, or a damaged one.
    """
    options = LoadOptions(num_classes, image_size, head, num_heads, interpolation, image_mean, image_std)
    return log_notes(path, load_any(path, options))


def read_snapshot(folder: Path) -> Snapshot:
    """Read the weights of the best committed checkpoint of a run, else of the last one that is whole.

    Raises:
        VitkitError: there is none, or one cannot be read.
    """
    damaged: dict[Path, str] = {}
    for _ in range(TRIES):
        committed = [path for path in newest_first(folder / FOLDER) if _is_committed(path)]
        left = [path for path in committed if path not in damaged]
        if not left:
            break
        chosen = left[0]
        try:
            best = read_progress(chosen).best_step
            wanted = folder / FOLDER / step_name(best) if best is not None else chosen
            if read_run(folder).training.select == "best" and wanted in left:
                chosen = wanted
            reason = find_damage(chosen)
            if reason is None:
                step = read_progress(chosen).step
                weights = load_weights(chosen)
                return Snapshot(weights_file(chosen), step, step == best, weights)
        except (UnreadableError, OSError, VitkitError) as error:
            reason = str(error)
        if chosen.exists():  # else it was removed after newer ones were committed: those are looked for again
            damaged[chosen] = reason
    if not damaged:
        raise VitkitError(
            f"{folder} has no checkpoint yet: the run has not finished, and nothing of it is committed. Wait "
            "for its first checkpoint, or continue it with vitkit train --resume."
        )
    reasons = "; ".join(f"{path.name}: {reason}" for path, reason in damaged.items())
    raise VitkitError(f"None of the checkpoints of {folder} is whole ({reasons}). Nothing was changed.")


def _is_committed(checkpoint: Path) -> bool:
    return bool(commit_size(checkpoint))


def _identity(folder: Path, found: Snapshot) -> Identity:
    """Describe the model of a run by its configuration and the record of its images."""
    run, record = read_run(folder), read_record(folder)
    if record is None:
        raise VitkitError(
            f"{folder / 'data.json'}, which names the classes of the run, is missing. Put it back, or "
            "continue the run with vitkit train --resume, which writes it again."
        )
    name, config = run_model(run, len(record.class_names), folder)
    card = run_card(run, record, record.fingerprint, name)
    card = replace(card, origin={**card.origin, "weights": f"{found}, of a run that has not finished"})
    note = f"this run has not finished: the weights are those of {found}"
    return Identity(found.file, "vitkit", config, card, {}, (note,))
