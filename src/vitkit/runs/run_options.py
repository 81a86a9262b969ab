"""The options of a run by their names in Python, so that a type checker refuses a wrong one.

They are the fields of `Run` and of its parts. Their texts explain them; `vitkit train --help-all` prints
these.
"""

from typing import Literal, TypedDict

from vitkit.data.config import Interpolation, Resize
from vitkit.models.config.card import TaskName
from vitkit.models.config.compute_config import Precision
from vitkit.models.config.image_config import Size
from vitkit.models.config.vit_config import ImagePoolKind, PositionKind
from vitkit.models.config.vit_config import Interpolation as PositionInterpolation
from vitkit.training.config import Sharding


class RunOptions(TypedDict, total=False):
    """The options of a run but for its images and its start, which functions that train take themselves."""

    task: TaskName
    model: str
    start_from: Literal["end", "best", "last"]
    head: Literal["new", "keep"]
    position_interpolation: PositionInterpolation | None
    image_mean: tuple[float, ...] | None
    image_std: tuple[float, ...] | None
    measure_pixels: bool
    num_heads: int | None
    pool: ImagePoolKind | None
    extra_class_token: bool | None
    stem_channels: tuple[int, ...] | None
    stem_strides: tuple[int, ...] | None
    position: PositionKind | None
    representation_size: int | None
    dropout: float | None
    attention_dropout: float | None
    drop_path: float | None
    layer_scale: float | None
    gelu: Literal["tanh", "erf"] | None
    image_size: Size
    resize: Resize
    crop_fraction: float
    antialias: bool
    apply_exif: bool
    background: tuple[int, int, int]
    max_pixels: int
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
    freeze: Literal["nothing", "trunk"]
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
    precision: Precision
    exact: bool
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
