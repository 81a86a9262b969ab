"""The configuration of a training run: everything that decides its result, in one value.

It is written into the run folder as `config.json` before anything else happens.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from vitkit.config import (
    IN_PYTHON_ALONE,
    PREFIXED,
    Valid,
    describe_value,
    difference,
    from_json,
    nearest,
    read_value,
    to_json,
)
from vitkit.data.config import Augmentation, Loading, Preprocessing, Splits
from vitkit.durable import read_json
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.models import zoo
from vitkit.models.config import ImagePoolKind, Interpolation, PositionKind, TaskName
from vitkit.models.zoo import ModelConfig
from vitkit.other_names import OTHER_NAMES
from vitkit.text import without_places
from vitkit.training.config import (
    OBJECTIVES,
    ClassificationConfig,
    ObjectiveConfig,
    OptimizerConfig,
    TrainingConfig,
)

WHICH_IMAGES = (
    "Which images? Give --data: digits (built in), a folder of class folders or a .zip or .tar of "
    "one, a .csv of paths and labels, or a folder of .parquet files."
)
"""The error of a run without images."""


@dataclass(frozen=True)
class Architecture(Valid):
    """Changes to the model that the name stands for. None keeps the value of the name."""

    pool: ImagePoolKind | None = None
    """How the tokens become one vector: the class token (token), the mean or maximum of the patches (mean,
    max), attention pooling (map), or the class token and behind it the mean (token+mean)."""
    extra_class_token: bool | None = field(default=None, metadata=IN_PYTHON_ALONE)
    """Give the encoder a class token although the pooling does not read it, as MAE's has one."""
    stem_channels: tuple[int, ...] | None = field(default=None, metadata=IN_PYTHON_ALONE)
    """Channels of 3x3 convolutions before the patches, of which the last halve the image until a position is
    a patch. A name that ends in -conv chooses them."""
    stem_strides: tuple[int, ...] | None = field(default=None, metadata=IN_PYTHON_ALONE)
    """Stride of each of these convolutions, 1 or 2, instead: 1 2 1 2 1 2 makes patches of 8 pixels, and keeps
    more of the computation where the map is large."""
    position: PositionKind | None = None
    """Position embedding: learned (one vector for each patch), learned_2d (one for its row, one for its
    column), relative (vectors of offsets in the attention), relative_bias (numbers of offsets there),
    sincos_2d (fixed sines), sincos_2d_mae (with the frequencies of MAE's authors), or none (paper, appendix
    D.4)."""
    representation_size: int | None = None
    """Width of the tanh layer before the head, which the paper has in pre-training."""
    dropout: float | None = None
    """Fraction of the activations that are set to zero in training, from 0 to 1."""
    attention_dropout: float | None = None
    """Fraction of the attention weights that are set to zero in training, from 0 to 1."""
    drop_path: float | None = None
    """Stochastic depth: fraction of the images that skip a branch of the last block in training, from 0 to
    below 1. In the blocks before it the fraction rises evenly from 0."""
    layer_scale: float | None = None
    """First value of a learned factor for each channel of every branch (DeiT III): below 1, a new Transformer
    passes on what its stem made, and learns sooner."""
    gelu: Literal["tanh", "erf"] | None = field(default=None, metadata=IN_PYTHON_ALONE)
    """Form of the GELU activation: the tanh approximation of the original code, or the exact one (erf)."""

    def build_config(self, name: str, num_classes: int, preprocessing: Preprocessing) -> ModelConfig:
        """Make the configuration of the model `name`, for the images' channels, with these changes.

        Raises:
            VitkitError: no such model, or a change that a ResNet does not know.
        """
        config = zoo.model_config(name, num_classes, preprocessing.image_size)
        config = zoo.with_channels(config, preprocessing.decode.channels)
        changes = {key: value for key, value in vars(self).items() if value is not None}
        if unknown := [key for key in changes if key not in vars(config)]:
            raise VitkitError(
                f"{name} has no {', '.join(unknown)}, which a Vision Transformer alone has: choose such a "
                "--model, or leave them out."
            )
        return replace(config, **changes)


@dataclass(frozen=True)
class StartConfig(Valid):
    """The weights that a run begins from, and the way in which they are fitted to it."""

    start: str = ""
    """A run folder, a file or folder of weights, or an address (hf:org/name, https://...); left out, new
    weights are drawn."""
    start_from: Literal["end", "best", "last"] = "end"
    """The weights taken from a run folder: its final model, or its best or last checkpoint. Of an unfinished
    run, "end" is its best checkpoint so far."""
    head: Literal["new", "keep", "ridge"] = "new"
    """new: a linear layer of zeros in place of the whole head (paper 3.1). keep: the head as it is, which
    needs the same classes, matched by their names. ridge: solved in closed form on the features of a frozen
    backbone, to which `vitkit extend` adds images and classes, and from which it takes them out."""
    position_interpolation: Interpolation | None = None
    """The library by whose rule position embeddings are resized for another image size; left out, the one
    that the start comes from (timm's is open_clip's and that of DINOv2 with registers too)."""
    image_mean: tuple[float, ...] | None = None
    """Mean of pixels in [0, 1], a value for each channel or one for all; left out, the start's mean, and 0.5
    for new weights."""
    image_std: tuple[float, ...] | None = None
    """Standard deviation of pixels in [0, 1], a value for each channel or one for all; left out, as above."""
    measure_pixels: bool = False
    """Measure image_mean and image_std on up to 500 training images, where they are not given."""
    num_heads: int | None = None
    """Heads of the attention, where a file does not record them."""


@dataclass(frozen=True)
class Run:
    """Options of training; those left out are the recipe's."""

    data: str = ""
    """Images with labels: "digits" (built in), a folder of class folders or a .zip or .tar of one, a .csv
    or a folder of .parquet; for multi-label a .csv or a folder of images with a text file of labels each."""
    task: TaskName = "classification"
    """The task that is learned: classification, one class for each image; multi-label, any number of labels.
    """
    model: str = "ViT-Ti/16"
    """Name of the model, as `vitkit models` lists them (ViT-B/16, R50+ViT-B/16, BiT-R50x1), or
    ViT-WIDTHxDEPTHxHEADS/PATCH, such as ViT-192x9x3/8; with a start, that of the start."""
    start: StartConfig = field(default_factory=StartConfig)
    architecture: Architecture = field(default_factory=Architecture)
    preprocessing: Preprocessing = field(default_factory=lambda: Preprocessing(image_size=(224, 224)))
    augmentation: Augmentation = field(default_factory=Augmentation)
    objective: ObjectiveConfig = field(default_factory=ClassificationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    splits: Splits = field(default_factory=Splits)
    loading: Loading = field(default_factory=Loading)
    fewshot: FewShotTracking = field(default_factory=FewShotTracking)
    recipe: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", zoo.zoo_name(self.model))
        expected = OBJECTIVES.get(self.task, ClassificationConfig)
        if not isinstance(self.objective, expected):
            raise VitkitError(
                f"The objective of {self.task} is made from a {expected.__name__}, found a "
                f"{type(self.objective).__name__}: give both task and objective."
            )
        frozen = self.optimizer.freeze == "backbone" and self.task == "classification"
        if self.start.head == "ridge" and (not frozen or self.start.measure_pixels):
            raise VitkitError(
                "A ridge head is solved on the features of a start that stays as it is, for one class an "
                "image: give a start and --freeze backbone, without --measure-pixels and --task."
            )
        if self.optimizer.optimizer == "muon" and self.training.sharding in ("fsdp", "hsdp"):
            raise VitkitError(
                f"muon updates whole matrices, of which --sharding {self.training.sharding} gives each "
                "process a part: choose --sharding replicas, or --optimizer adamw."
            )

    @classmethod
    def field_types(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the type of the objective, which the task decides."""
        task = data.get("task", "classification")
        kind = OBJECTIVES.get(task) if isinstance(task, str) else None
        return {"objective": kind or ClassificationConfig}


def require_data(run: Run) -> None:
    """Refuse a run without images."""
    if not run.data:
        raise VitkitError(WHICH_IMAGES)


def model_config_of(run: Run, num_classes: int) -> ModelConfig:
    """Give the configuration of the model of a run without a start, with the pixel statistics that it gives.

    Raises:
        VitkitError: as `Architecture.build_config`; or statistics of another number of channels.
    """
    config = run.architecture.build_config(run.model, num_classes, run.preprocessing)
    return zoo.with_statistics(config, run.start.image_mean, run.start.image_std)


def full_name(run: Run, num_classes: int) -> str:
    """Name the model of a run with the changes of its architecture; "" where its start names the model."""
    if not run.model:
        return ""
    try:
        config = run.architecture.build_config(run.model, num_classes, run.preprocessing)
    except VitkitError:  # images too small for its patches, say: it has no changed name then
        return run.model
    return zoo.changed_name(run.model, config) or run.model


def read_config(folder: Path) -> dict[str, Any]:
    """Read the `config.json` of a run folder.

    It names images and a start. Of a run that somebody else began, continuing it reads those and fetches an
    address: that is its purpose.

    Raises:
        VitkitError: no run there, or a damaged one.
    """
    path = folder / "config.json"
    try:
        data = read_json(path)
    except FileNotFoundError:
        if (folder / "study.json").is_file():
            raise VitkitError(
                f"{folder} is a study, whose page is {folder / 'report.html'}. The command that began it "
                "goes on with it, and writes the page anew."
            ) from None
        raise VitkitError(f"{folder} is no run folder: it has no config.json.") from None
    except VitkitError as error:
        if isinstance(error.__cause__, NotADirectoryError):
            raise VitkitError(
                f"{folder} is a file, or would be in one: expected the folder of a run. Name that folder."
            ) from None
        raise
    if not isinstance(data, dict) or not isinstance(data.get("run"), dict):
        raise VitkitError(
            f"{path} is not the configuration of a run: expected an object with a field 'run', found "
            f"{describe_value(data)}."
        )
    return data


def shown_command(command: str) -> str:
    """Shorten absolute paths in a command to their last name, for pages that are given away."""
    try:
        arguments = [word.rpartition("=") for word in shlex.split(command)]
    except ValueError:  # nothing that a shell could read
        return command
    return shlex.join(f"{name}{mark}{without_places(value)}" for name, mark, value in arguments)


def parse_run(config: Mapping[str, Any], folder: Path) -> Run:
    """Make the run from the contents of its `config.json`."""
    return from_json(Run, config["run"], str(folder / "config.json"))


def changed_options(recorded: Mapping[str, Any], where: str, run: Run, moved: bool = False) -> list[str]:
    """List the options in which `run` differs from a recorded one, as lines "option: this -> that".

    Left out are the options of loading, the size of micro-batches, `recompute` and `sharding`, which people
    change when memory runs out; with `moved` also the paths of images and start: the listing of the images
    is compared elsewhere.

    Raises:
        VitkitError: the record in the file `where` is no run.
    """
    # Parsed into a Run first: options that are newer than the record then take their defaults.
    there, here = to_json(from_json(Run, recorded, where)), to_json(run)
    if None not in (there["training"]["steps"], here["training"]["steps"]):
        here["training"]["epochs"] = there["training"]["epochs"]  # the steps stand in their place
    for options in (there, here):
        del options["loading"]
        for name in ("micro_batch_size", "recompute", "sharding"):
            del options["training"][name]
        if moved:
            del options["data"], options["start"]["start"]
    return difference(there, here)


def with_options(run: Run, values: Mapping[str, Any]) -> Run:
    """Give a run other values of some options, all at once: some are valid only together.

    Another task replaces the objective, and a length in epochs replaces the number of steps.

    Args:
        run: the run.
        values: of options by their names, as `vitkit train` has them, with "-" or "_": "position",
            "learning-rate", "splits.val-fraction" (as a name in Python "splits_val_fraction"); or by the path
            of its field, "optimizer.learning_rate". Each is of the option's type, or a text that is read as
            one.

    Raises:
        VitkitError: no such options (what each is called here, or the nearest one, is named), or a value that
            an option does not take.
    """
    if values.get("task", run.task) != run.task:
        run = with_task(run, read_value(TaskName, values["task"], "task"))
    given, unknown = {}, list[str]()
    for name, value in values.items():
        try:
            given[_path(run, name)] = name, value
        except VitkitError as error:
            unknown.append(str(error))
    if unknown:
        raise VitkitError(" ".join(unknown))
    if ("training", "epochs") in given and run.training.steps is not None:
        run = replace(run, training=replace(run.training, steps=None))  # they would go before the epochs
    changed: Run = _with_fields(run, given)
    return changed


def with_task(run: Run, task: TaskName) -> Run:
    """Give a run another task, and the task's default objective where its own does not suit it."""
    kind = OBJECTIVES.get(task, ClassificationConfig)
    if isinstance(run.objective, kind):
        return replace(run, task=task)
    # Where no labels are learned, there is nothing to test.
    fraction = run.splits.test_fraction if issubclass(kind, ClassificationConfig) else 0.0
    return replace(run, task=task, objective=kind(), splits=replace(run.splits, test_fraction=fraction))


def option_value(run: Run, name: str) -> Any:
    """Return the value of an option of a run.

    Raises:
        VitkitError: no such option; the nearest one is named.
    """
    value: Any = run
    for part in _path(run, name):
        value = getattr(value, part)
    return value


def options_of(config: Any, section: str = "") -> dict[str, str]:
    """Give the field of each option of a run, or of a section of it: {"steps": "training.steps"}."""
    options: dict[str, str] = {}
    for part in fields(config):
        path, value = f"{section}{part.name}", getattr(config, part.name)
        options |= options_of(value, f"{path}.") if is_dataclass(value) else {_option(path): path}
    return options


def _path(run: Run, name: str) -> tuple[str, ...]:
    """Find the field of an option: "steps" is `steps` of `training`."""
    paths = options_of(run)
    in_python = {option.replace("-", "_").replace(".", "_"): path for option, path in paths.items()}
    path = name if name in paths.values() else paths.get(name.replace("_", "-")) or in_python.get(name)
    if path is None:
        # The suggestion is spelled as in Python, unless the option was spelled as on the command line.
        names = paths if "-" in name else in_python
        elsewhere = name.replace("_", "-").lower()
        for ours, others in OTHER_NAMES.items():
            if elsewhere in others and (option := ours.removeprefix("--")) in paths:
                here = next(spelled for spelled in names if names[spelled] == paths[option])
                raise VitkitError(f"No option of training is named {name}. Here it is {here}.")
        raise VitkitError(f"No option of training is named {name}. {nearest(name, names)}")
    return tuple(path.split("."))


def _with_fields(config: Any, given: Mapping[tuple[str, ...], tuple[str, Any]]) -> Any:
    """Put values, each with the name of its option, into the fields of a configuration, or of one within."""
    changes = {}
    for name in {path[0] for path in given}:
        within = {path[1:]: value for path, value in given.items() if path[0] == name}
        if () in within:
            option, value = within[()]
            changes[name] = read_value(get_type_hints(type(config))[name], value, option)
        else:
            changes[name] = _with_fields(getattr(config, name), within)
    return replace(config, **changes)


LENGTH = ("training.steps", "training.epochs", "training.minutes")
FROM_LENGTH = ("optimizer.warmup_steps", "training.evaluate_every")
"""Fields that are a part of the length of a run where nobody gives them."""


def name_options(changes: Sequence[str]) -> list[str]:
    """Write differences of `changed_options` with the options' names on the command line: "--steps 4 -> 5".

    Options that follow from the length are left out where the length differs, and epochs where steps differ.
    """
    changed = [change.split(": ", 1) for change in changes]
    fields_changed = [name for name, _ in changed]
    following = FROM_LENGTH if set(LENGTH) & set(fields_changed) else ()
    if "training.steps" in fields_changed:
        following = (*following, "training.epochs")
    return [f"--{_option(name)} {values}" for name, values in changed if name not in following]


def _option(name: str) -> str:
    """Name the option of a field; options of splits and few-shot accuracy have their section's name first."""
    section, _, field_name = name.rpartition(".")
    prefix = f"{section}." if section in PREFIXED else ""
    return prefix + field_name.replace("_", "-")
