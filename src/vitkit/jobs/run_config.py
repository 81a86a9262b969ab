"""A run: everything that decides its result, in one value, written down before anything else happens."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from vitkit._version import __version__
from vitkit.config import difference, from_json, require_finite, shown, to_json
from vitkit.data.loader_config import Loading
from vitkit.data.sources_config import Splits
from vitkit.data.transforms_config import Augmentation, Preprocessing
from vitkit.durable import read_json, replace_json
from vitkit.errors import VitkitError
from vitkit.jobs.start_config import StartConfig
from vitkit.models.card import TaskName
from vitkit.models.vit_config import ImagePoolKind, PositionKind
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.training.objectives_config import ClassificationConfig
from vitkit.training.optim_config import OptimizerConfig
from vitkit.training.trainer_config import TrainingConfig


@dataclass(frozen=True)
class Architecture:
    """What is different from the model the name stands for; left out: nothing."""

    pool: ImagePoolKind | None = None
    """Class token, mean (GAP) or maximum of the patches, or attention pooling (MAP)."""
    register_tokens: int | None = None
    """Learned tokens beside the class token."""
    position: PositionKind | None = None
    """Position embedding: one vector for each patch, one for its row and one for its column, offsets in the
    attention, fixed sines, or none (paper D.4)."""
    position_at: Literal["stem", "every_layer", "every_layer_shared"] | None = None
    """Where it is added: before the first layer, or before every layer, its own or one for all."""
    mlp_dim: int | None = None
    """Hidden width of the MLP in every layer."""
    representation_size: int | None = None
    """Width of the tanh layer before the head."""
    dropout: float | None = None
    """Share of the activations set to zero in training."""
    attention_dropout: float | None = None
    """The same of the attention weights."""
    gelu: Literal["tanh", "erf"] | None = None
    """The activation function: the original's tanh form, or the exact one."""
    head_bias_init: float | None = None
    """Bias that the head starts with; below zero for a sigmoid loss over many classes."""

    def __post_init__(self) -> None:
        require_finite(self)

    def of(self, name: str, num_classes: int, preprocessing: Preprocessing) -> ModelConfig:
        """The configuration of the model `name` with these changes.

        Raises:
            VitkitError: no such model, or a change that a ResNet does not know.
        """
        config = model_config(name, num_classes, preprocessing.image_size)
        changes = {key: value for key, value in to_json(self).items() if value is not None}
        known = {field.name for field in fields(config)}
        unknown = [key for key in changes if key not in known]
        if unknown:
            raise VitkitError(
                f"{name} has no {', '.join(unknown)}: these are a Vision Transformer's. Leave them out."
            )
        return replace(config, **changes)


@dataclass(frozen=True)
class Run:
    """Options of training. Those left out are the recipe's."""

    data: str = ""
    """Images with labels: "digits" (built in), a folder of class folders, a .csv or a folder of .parquet;
    for multi-label a .csv or a folder of images with a text file of labels each."""
    task: TaskName = "classification"
    """What is learned: classification, one class for each image; multi-label, any number of them."""
    model: str = "ViT-Ti/16"
    """A name of `vitkit models` (ViT-B/16, R50+ViT-B/16, BiT-R50x1), or ViT-WIDTHxDEPTHxHEADS/PATCH; with a
    start, that of the start."""
    start: StartConfig = field(default_factory=StartConfig)
    architecture: Architecture = field(default_factory=Architecture)
    preprocessing: Preprocessing = field(default_factory=lambda: Preprocessing(image_size=(224, 224)))
    augmentation: Augmentation = field(default_factory=Augmentation)
    objective: ClassificationConfig = field(default_factory=ClassificationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    splits: Splits = field(default_factory=Splits)
    loading: Loading = field(default_factory=Loading)
    recipe: str = ""


def write_config(folder: Path, run: Run, command: str) -> None:
    """Write a run down; nothing is computed before that."""
    replace_json(
        folder / "config.json", {"vitkit_version": __version__, "command": command, "run": to_json(run)}
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of a run folder's `config.json`.

    Raises:
        VitkitError: no run there, or a damaged one.
    """
    path = folder / "config.json"
    try:
        data = read_json(path)
    except FileNotFoundError:
        raise VitkitError(f"{folder} is no run folder: it has no config.json.") from None
    if not isinstance(data, dict) or not isinstance(data.get("run"), dict):
        raise VitkitError(
            f"{path} is not the configuration of a run: expected an object with a field 'run', found "
            f"{shown(data)}."
        )
    return data


def is_run(folder: Path) -> bool:
    """Whether it is the folder of a run; other libraries have a `config.json` too."""
    try:
        read_config(folder)
    except VitkitError:
        return False
    return True


def read_run(folder: Path) -> Run:
    """The run that a folder holds."""
    return from_json(Run, read_config(folder)["run"], str(folder / "config.json"))


def changed_options(recorded: Mapping[str, Any], where: str, run: Run, moved: bool = False) -> list[str]:
    """The options in which `run` differs from a recorded one, as lines "option: this -> that".

    Some may differ: how images are loaded, and in what portions, which is what changes when memory runs out.
    With `moved`, the place of the images is one of those: their listing is compared apart.

    Raises:
        VitkitError: what was recorded `where` is no run.
    """
    # By way of a Run, so that options that are newer than the record take their defaults.
    there, here = to_json(from_json(Run, recorded, where)), to_json(run)
    for options in (there, here):
        del options["loading"], options["training"]["micro_batch_size"]
        if moved:
            del options["data"], options["start"]["start"]
    return difference(there, here)
