"""The options of a run by their names in Python, so that a type checker refuses a wrong one, and of a
series of runs: a sweep over learning rates, several seeds, or all folds. They need no torch.

The first are the fields of `Run` and of its parts. Their texts explain them; `vitkit train --help-all` prints
these.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from vitkit.config import Folds, Positive, Range, require_valid
from vitkit.data.config import Interpolation, Resize
from vitkit.errors import VitkitError
from vitkit.models import config
from vitkit.training.config import Sharding


class RunOptions(TypedDict, total=False):
    """The options of a run but for its images and its start, which functions that train take themselves."""

    task: config.TaskName
    model: str
    start_from: Literal["end", "best", "last"]
    head: Literal["new", "keep", "ridge"]
    position_interpolation: config.Interpolation | None
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None
    measure_pixels: bool
    num_heads: int | None
    pool: config.ImagePoolKind | None
    extra_class_token: bool | None
    stem_channels: tuple[int, ...] | None
    stem_strides: tuple[int, ...] | None
    position: config.PositionKind | None
    representation_size: int | None
    dropout: float | None
    attention_dropout: float | None
    drop_path: float | None
    layer_scale: float | None
    gelu: Literal["tanh", "erf"] | None
    image_size: config.Size
    resize: Resize
    crop_fraction: float
    antialias: bool
    apply_exif: bool
    background: tuple[int, int, int]
    max_pixels: int
    jpeg_side: int | None
    channels: int
    interpolation: Interpolation
    crop_offset: Literal["even", "down"]
    border: tuple[int, int, int]
    crop_area: tuple[float, float] | None
    crop_aspect: tuple[float, float] | None
    flip: bool
    shift: int
    rotate: float
    jpeg_scaling: bool
    rand_augment: int
    rand_augment_magnitude: float
    random_erasing: float
    loss: Literal["softmax", "sigmoid"]
    label_smoothing: float
    mixup: float
    cutmix: float
    logit_adjustment: float
    class_weights: Literal["none", "balanced"]
    optimizer: Literal["adamw", "adam", "sgd", "muon"]
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    momentum: float
    momentum_dtype: Literal["float32", "bfloat16"]
    clip_norm: float | None
    schedule: Literal["cosine", "linear", "constant"]
    warmup_steps: int
    polyak: float | None
    freeze: Literal["nothing", "backbone"]
    freeze_layers: int
    layer_decay: float
    head_rate: float
    epochs: float
    steps: int | None
    minutes: float | None
    batch_size: int
    micro_batch_size: int | None
    recompute: bool
    sharding: Sharding
    seed: int
    precision: config.Precision
    exact: bool
    fast: bool
    cuda_graphs: bool
    log_every: int
    evaluate_every: int | None
    checkpoint_every: int | None
    keep: int
    patience: int | None
    select: Literal["best", "last"]
    evaluate_test: bool
    splits_val_fraction: float
    splits_test_fraction: float
    splits_seed: int
    splits_label_separator: str | None
    splits_levels: bool
    splits_group: str | None
    splits_folds: int | None
    splits_fold: int | None
    splits_subset: str | None
    splits_subset_seed: int | None
    workers: int | None
    memory_gib: float
    bad_quota: float
    check_images: Literal["time", "content", "names"]
    worker_timeout: float
    step_timeout: float
    fewshot_data: str
    fewshot_every: int | None
    fewshot_shots: tuple[int, ...]
    target: Literal["mean-colour", "4x4-colours", "pixels"]
    mask_fraction: float
    token_fraction: float
    other_fraction: float
    mask_block: int
    decoder_width: int
    decoder_depth: int
    decoder_heads: int
    normalize_patches: bool


class OptionsOfRun(RunOptions, total=False):
    """All options of a run."""

    data: str
    start: str


MOST_RUNS = 1_000
"""Far more runs than a mean and a standard deviation need."""


@dataclass(frozen=True)
class SeriesOptions:
    """Several runs in place of one; the members are run folders within the folder of the series.

    The checkpoints of a member are removed when it has finished; its model, log and report stay.

    Unstable: its fields may change in any release.
    """

    sweep: bool = False
    """Try learning rates first, on images that are held out of the training images (--splits.val-fraction);
    then train on all of them with the best rate. The test images are looked at once, by that run."""
    sweep_rates: tuple[Positive, ...] = ()
    """Learning rates to try, with or without --sweep. Left out: with a recipe of the paper's fine-tuning the
    rates of its Table 4, else 0.1, 0.3, 1 and 3 times the run's own rate."""
    runs: Annotated[int, Range(f"at least 1 and at most {MOST_RUNS:,}", 1, MOST_RUNS)] = 1
    """Number of runs, with seeds that follow one another from --seed, for mean and standard deviation; their
    splits are the same."""
    redraw: bool = False
    """Train each of several runs on another part of the training images, of the size of --subset: the spread
    is then over draws too. The test images are the same."""
    cross_validate: Folds | None = None
    """Cut the images into so many folds and train as many runs, each tested on another fold, so that every
    image is tested exactly once. Every class is dealt round the folds."""
    sweep_data: str = ""
    """Images to try the rates on, with validation images of their own (VTAB-1k: 800 and 200 of the 1,000);
    left out, the part of the training images that is not held out."""

    def __post_init__(self) -> None:
        require_valid(self)
        if len({f"{rate:g}" for rate in self.sweep_rates}) < len(self.sweep_rates):  # they name folders
            raise VitkitError(
                "sweep_rates has a rate twice, or two that agree in six digits: give each once."
            )
        if self.sweep_data and not self.sweeps:
            raise VitkitError("sweep_data has the images of a sweep: give --sweep as well, or leave it out.")
        if self.redraw and self.runs < 2:
            raise VitkitError("redraw draws another part for each of several runs: give --runs as well.")
        if self.cross_validate is not None and self.runs > 1:
            raise VitkitError("cross_validate and runs ask for different series: give one of the two.")
        if self.cross_validate is not None and self.sweeps:
            raise VitkitError(
                "A rate that is chosen once has seen the test images of all folds but one: sweep without "
                "--cross-validate, or cross-validate with a --learning-rate."
            )

    @property
    def sweeps(self) -> bool:
        """Whether learning rates are tried."""
        return self.sweep or bool(self.sweep_rates)

    @property
    def num_runs(self) -> int:
        """The number of all runs, those of the sweep included: a single rate needs no sweep."""
        tried = len(self.sweep_rates) if len(self.sweep_rates) > 1 else 0
        return tried + (self.cross_validate or self.runs)

    @property
    def is_series(self) -> bool:
        """Whether these options ask for more than one ordinary run."""
        return self.sweeps or self.runs > 1 or self.cross_validate is not None

    @property
    def ending(self) -> str:
        """The last part of the name of a folder that is not given."""
        return "-sweep" if self.sweeps else "-folds" if self.cross_validate else "-runs"
