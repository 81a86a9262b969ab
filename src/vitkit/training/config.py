"""The options of training: objective, optimiser and loop. They need no torch.

The objectives of all tasks are configured here, because the configuration of a run is read without torch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from vitkit.config import AtLeastOne, BelowOne, Positive, Range, Seed, Valid, WithinOne, ZeroOrMore
from vitkit.errors import VitkitError
from vitkit.models.config import Precision


@dataclass(frozen=True)
class ClassificationConfig(Valid):
    """The loss, and the changes of images and labels that belong to it."""

    loss: Literal["softmax", "sigmoid"] = "softmax"
    """Loss function. softmax: cross entropy over classes that exclude each other. sigmoid: binary cross
    entropy of each class, summed over the classes, as big_vision pre-trains; multi-label always uses it."""
    label_smoothing: BelowOne = 0.0
    """Fraction of each target that is spread evenly over all classes, from 0 to below 1; in multi-label, over
    yes and no."""
    mixup: ZeroOrMore = 0.0
    """Strength of mixup: alpha of the Beta distribution from which the weights of two images are drawn; 0 for
    no mixup."""
    cutmix: ZeroOrMore = 0.0
    """Strength of CutMix: alpha of the Beta distribution of the fraction of an image that stays when a box of
    it is replaced by another image's; 0 for no CutMix (arXiv 1905.04899). With mixup too, each batch draws
    one of the two."""
    logit_adjustment: ZeroOrMore = 0.0
    """Tau of the logit adjustment against imbalance: in training, tau times the logarithm of each class's
    fraction of the training images is added to its logit (arXiv 2007.07314: 1); 0 for none."""
    class_weights: Literal["none", "balanced"] = "none"
    """Weights of the classes in the loss. balanced: each class counts alike, an image of a class of n among N
    training images of K classes as N / (K n) (scikit-learn's rule)."""

    @property
    def mixes(self) -> bool:
        """Whether each image is mixed with the one before it."""
        return self.mixup > 0 or self.cutmix > 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.logit_adjustment and self.loss != "softmax":
            raise VitkitError(
                "logit_adjustment shifts classes against each other, which the sigmoid loss does not "
                "compare: choose --loss softmax, or --class-weights balanced."
            )
        if self.logit_adjustment and self.class_weights != "none":
            raise VitkitError(
                "logit_adjustment and class_weights both even out the classes, and together do it twice: "
                "choose one of the two."
            )


Sharding = Literal["auto", "replicas", "fsdp", "hsdp"]
"""The division of weights and optimiser among processes; auto: fsdp where replicas do not fit into memory."""


@dataclass(frozen=True)
class MaskedPatchesConfig(Valid):
    """Masked patch prediction (paper 4.6 and B.1.2)."""

    target: Literal["mean-colour", "4x4-colours", "pixels"] = "mean-colour"
    """Prediction for a hidden patch: its mean colour in 3 bits a channel (mean-colour: one of 512 classes),
    the colours of 4x4 parts of it (4x4-colours: 16 predictions of 512 classes), or all its pixels, judged by
    the squared difference (pixels)."""
    mask_fraction: WithinOne = 0.5
    """Fraction of the patches of an image that are hidden, rounded up (paper: 0.5; 0.15 is slightly worse).
    """
    token_fraction: ZeroOrMore = 0.8
    """Fraction of the hidden patches that a learned mask token stands in for."""
    other_fraction: ZeroOrMore = 0.1
    """Fraction of the hidden patches that another patch of the same image stands in for. The rest stays as it
    is, and is predicted too."""
    mask_block: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token_fraction + self.other_fraction > 1:
            raise VitkitError(
                "token_fraction and other_fraction are fractions of the hidden patches, together 1 at most, "
                f"found {self.token_fraction} and {self.other_fraction}."
            )


@dataclass(frozen=True)
class SimMIMConfig(Valid):
    """SimMIM (arXiv 2111.09886): the pixels of hidden patches, by one linear layer."""

    mask_fraction: WithinOne = 0.6
    """Fraction of an image that is hidden, rounded up."""
    mask_block: AtLeastOne = 2
    """Side of the squares of patches that are hidden together; SimMIM: 2, which makes 32 pixels of patches of
    16."""


@dataclass(frozen=True)
class MAEConfig(Valid):
    """MAE (arXiv 2111.06377): a decoder predicts the pixels of hidden patches from the visible ones."""

    mask_fraction: WithinOne = 0.75
    """Fraction of the patches that are hidden, rounded up; the model computes the others alone."""
    decoder_width: AtLeastOne = 512
    """Width of the decoder's tokens, a multiple of 4 and of its heads."""
    decoder_depth: AtLeastOne = 8
    """Blocks of the decoder."""
    decoder_heads: AtLeastOne = 16
    """Heads of the decoder's attention."""
    normalize_patches: bool = True
    """Predict the pixels of a patch minus their mean, divided by their standard deviation."""
    mask_block: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder_width < 8 or self.decoder_width % 4 or self.decoder_width % self.decoder_heads:
            raise VitkitError(
                "decoder_width is a multiple of 4 and of decoder_heads, at least 8, found "
                f"{self.decoder_width} and {self.decoder_heads} heads."
            )


MaskedImagesConfig = MaskedPatchesConfig | SimMIMConfig | MAEConfig
"""The configuration of an objective that hides a part of the images."""
ObjectiveConfig = ClassificationConfig | MaskedImagesConfig
"""The configuration of any task's objective."""


OBJECTIVES: Mapping[str, type[ObjectiveConfig]] = {
    "classification": ClassificationConfig,
    "multi-label": ClassificationConfig,
    "masked-patches": MaskedPatchesConfig,
    "simmim": SimMIMConfig,
    "mae": MAEConfig,
}
"""The configuration that the objective of a task is made from, by the name of the task."""


@dataclass(frozen=True)
class OptimizerConfig(Valid):
    """Optimiser, learning-rate schedule, gradient clipping and weight averaging."""

    optimizer: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    """Optimiser. The paper's Adam (Table 3) decays weights apart from the gradient, which is adamw; adam is
    the same without weight decay. muon: orthogonalised momentum for the matrices of a Transformer's blocks,
    adamw for all else, at the rates of adamw."""
    learning_rate: Positive = 1e-3
    """Peak learning rate of the schedule."""
    weight_decay: ZeroOrMore = 0.1
    """Decoupled weight decay: each step shrinks the kernels by the fraction learning_rate * weight_decay;
    biases and norms are not decayed."""
    beta1: BelowOne = 0.9
    """Decay of Adam's running mean of the gradients, from 0 to below 1."""
    beta2: BelowOne = 0.999
    """Decay of Adam's running mean of the squared gradients, from 0 to below 1."""
    momentum: BelowOne = 0.9
    """Momentum of SGD, from 0 to below 1."""
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the first moment or momentum. The original code keeps bfloat16; the decay 0.9 is then
    rounded too, to 0.8984375."""
    clip_norm: Positive | None = 1.0
    """Largest global norm of the gradients; larger gradients are scaled down to it. None does not clip."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """Decay of the learning rate from its peak: by a cosine to 0, linearly to 1e-5, or not at all."""
    warmup_steps: Annotated[int, Range("0 or more", 0, math.inf)] = 0
    """Steps of linear warm-up from 0; the warm-up multiplies the decayed learning rate, as in the original
    code."""
    polyak: WithinOne | None = None
    """Decay of the Polyak average of the weights, which is evaluated and saved in their place (the paper's
    Table 2: 0.9999); None keeps no average."""
    freeze: Literal["nothing", "backbone"] = "nothing"
    """Part of the model that is not trained. backbone: the head alone learns, in vitkit finetune by a closed
    form unless --head new asks for gradient descent; freeze_layers and layer_decay have nothing to act on."""
    freeze_layers: Annotated[int, Range("0 or more", 0, math.inf)] = 0
    """Number of first blocks (or residual units) that are not trained, with all that is before them."""
    layer_decay: Annotated[float, Range("above 0 and at most 1", math.ulp(0.0), 1)] = 1.0
    """Layer-wise decay: the learning rate of a layer divided by the next layer's (BEiT and MAE: 0.75); 1 for
    the same rate in all layers."""
    head_rate: Positive = 1.0
    """Factor of the head's learning rate: above 1, a new head learns faster than the trained layers below
    it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer == "adam" and self.weight_decay:
            raise VitkitError(
                "Adam here has no weight decay; the paper's Adam with decay is 'adamw' (decay apart from the "
                "gradient). Choose adamw, or a weight decay of 0."
            )
        if self.optimizer == "muon" and self.momentum_dtype != "float32":
            raise VitkitError(
                f"muon keeps its momentum in float32, found momentum_dtype {self.momentum_dtype}: leave it "
                "out, or choose adamw or sgd."
            )

    @property
    def state_bytes(self) -> int:
        """Count the bytes that the optimiser stores for each weight: two moments, or SGD's one. Muon stores a
        little less, because it has one moment for the matrices of the blocks."""
        first_moment = 2 if self.momentum_dtype == "bfloat16" else 4
        return first_moment if self.optimizer == "sgd" else first_moment + 4


MOST_STEPS = 10**12
"""Largest number of steps; no run comes near it, so a larger one is a mistyped option."""
VALIDATION = "validation"
"""The evaluator that decides which weights are best, unless a monitor names another. In `metrics.jsonl` its
lines have the kind "validation"; all others have the kind "evaluation" and the evaluator's name."""


@dataclass(frozen=True)
class TrainingConfig(Valid):
    """The length of training, its batches, and the intervals of logs, validations and checkpoints."""

    epochs: Positive = 100.0
    """Passes over the training images; may be a fraction, such as 0.5."""
    steps: AtLeastOne | None = None
    """Number of updates of the weights, in place of --epochs."""
    minutes: Positive | None = None
    """Minutes of training with its validations, in place of --epochs and --steps: the speed of the machine is
    measured before the first step, and decides the number of steps once and for all."""
    batch_size: AtLeastOne = 128
    """Images per update of the weights, of all processes together."""
    micro_batch_size: AtLeastOne | None = None
    """Images that are computed at a time, by all processes together; gradients are summed until a batch is
    complete, which takes less memory. The update is the same but for dropout and mixup, which are drawn for
    each micro-batch. A GPU whose memory is too small computes fewer of them at a time by itself."""
    recompute: bool = False
    """Store the input of each block alone and compute the block again in the backward pass: much less memory
    for about a third more time, and the same result. It may change when a run is continued."""
    sharding: Sharding = "auto"
    """Division of weights, gradients and optimiser among several processes. replicas: each holds all of them.
    fsdp: each holds a part, and collects a block at a time (FSDP2). hsdp: divided among the processes of a
    machine, while every machine holds all. auto: fsdp where replicas do not fit into memory. It may change
    when a run is continued."""
    seed: Seed = 0
    """Seed of the initial weights, the order of images, augmentation and dropout."""
    precision: Precision = "auto"
    """Number format of the computation: float32, bfloat16 (by autocast), or auto: bfloat16 where the device
    has it and it is faster, else float32."""
    exact: bool = False
    """Compute in the plain way, without the faster ways to the same result. Then precision auto chooses
    bfloat16 on a GPU only."""
    fast: bool = False
    """On a GPU, add up in the quickest order and multiply float32 numbers by TF32, so that the same command
    no longer ends with the same bits. Left out, an operation without a fixed order is refused there. A
    processor computes as without it."""
    cuda_graphs: bool = False
    """On a GPU, record the passes of a training step through the model once and replay them: a small model,
    whose kernels end sooner than Python can launch them, trains faster by it. For models that learn labels,
    without dropout or stochastic depth, a whole batch at a time in one process. A processor computes as
    without it."""
    log_every: AtLeastOne = 10
    """Steps between lines of the metrics log."""
    evaluate_every: AtLeastOne | None = None
    """Steps between validations; left out, once per epoch, but at most 50 times in a run."""
    checkpoint_every: AtLeastOne | None = None
    """Steps between checkpoints; left out, one is written at every validation, but within ten seconds of
    another one only if its weights are the best so far and select is best."""
    keep: Annotated[int, Range("at least 1 (the checkpoint to continue from)", 1, math.inf)] = 2
    """Number of latest checkpoints that are not removed, besides the best one."""
    patience: AtLeastOne | None = None
    """Validations in a row without a better accuracy after which training stops; left out, it never stops
    early."""
    select: Literal["best", "last"] = "best"
    """Weights that the run ends with: of the best validation (best) or of the last step (last)."""
    evaluate_test: bool = True
    """Evaluate the finished run on the test images too. Without, they are not looked at: for runs from which
    the best is chosen."""

    def total_steps(self, num_samples: int) -> int:
        """Count the updates of the whole run over a training set of `num_samples` images.

        Raises:
            VitkitError: more than can be made.
        """
        steps = self.epochs * num_samples / self.batch_size if self.steps is None else self.steps
        if steps > MOST_STEPS:
            length = f"{self.epochs:g} epochs" if self.steps is None else f"{steps:,} steps"
            raise VitkitError(
                f"{length} are more than {MOST_STEPS:,} updates of {self.batch_size:,} images, which no run "
                "gets through. Give a smaller number of --epochs or --steps."
            )
        return max(1, math.ceil(steps))

    def evaluation_interval(self, num_samples: int) -> int:
        """Count the steps between two validations."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        epoch = math.ceil(num_samples / self.batch_size)
        return max(epoch, math.ceil(self.total_steps(num_samples) / 50))
