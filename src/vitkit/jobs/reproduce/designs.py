"""The arms of the paper's studies, made from a base run.

The arms of a study are made by a function of the base, such as `positions`. An arm has the name of its
folder; the conclusions that arms test are in `paper.toml`.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.errors import VitkitError
from vitkit.jobs.recipes import sweep_rates
from vitkit.models.config import ViTConfig
from vitkit.models.measure import forward_flops
from vitkit.models.zoo import changed_name, vit_config
from vitkit.runs.config import Architecture, Run, StartConfig, with_options
from vitkit.text import format_size
from vitkit.training.config import MaskedPatchesConfig


@dataclass(frozen=True)
class Base:
    """The run that the arms of a study are made from."""

    run: Run
    """The run of a ViT whose name has all of its shape, made by `base_of`; for checkpoints any run."""
    num_classes: int
    num_images: int
    """Training images."""
    folder: Path
    """The study's folder, absolute: arms may begin from others."""

    @property
    def shape(self) -> ViTConfig:
        """Return the configuration of the base's ViT."""
        return vit_config(self.run.model, self.num_classes, self.run.preprocessing.image_size)


def base_of(run: Run, num_classes: int, num_images: int, folder: Path) -> Base:
    """Make the base of a study from a run of a plain ViT; the other arguments are the fields of `Base`.

    Raises:
        VitkitError: it is no ViT, or one with another stem, pooling or position than a plain one.
    """
    shape = vit_config(run.model, num_classes, run.preprocessing.image_size)
    if changed_name(named(shape), shape) != named(shape):
        raise VitkitError(
            f"The base of a study is a plain ViT, which the arms change, found {run.model}: give a --recipe "
            "with a ViT such as ViT-64x4x4/4."
        )
    return Base(replace(run, model=named(shape)), num_classes, num_images, folder)


@dataclass(frozen=True)
class Variant:
    """An arm of a study before its number of steps is chosen."""

    name: str
    """Its folder."""
    label: str
    run: Run
    line: str
    """The line of the figure that it is a point of."""
    x: float = 0.0
    """Its place on the axis."""
    length: float = 1.0
    """Its steps over the base's steps."""
    rates: tuple[float, ...] = ()
    """Learning rates that it tries on held-out images; none: its own."""
    seeds: int = 0
    """Runs of the arm; 0: as many as the study has seeds."""


def flops(run: Run, num_classes: int) -> int:
    """Count the FLOPs of a forward pass of a run's model for one image."""
    return forward_flops(run.architecture.build_config(run.model, num_classes, run.preprocessing), head=True)


def named(shape: ViTConfig, patch: str = "") -> str:
    """Name a ViT by its shape, ViT-64x4x4x128/4; a hybrid has its total stride as `patch`."""
    height, width = shape.patch_size
    own = str(height) if height == width else format_size(shape.patch_size)
    return f"ViT-{shape.width}x{shape.depth}x{shape.num_heads}x{shape.mlp_dim}/{patch or own}"


# --- families of about equal cost: Figures 3, 4 and 5 ---

SUBSETS_3 = (1 / 16, 1 / 4, 1.0)
"""Fractions of the training images: the paper's data sets are 1.3, 14 and 303 million images (Figure 3)."""
SUBSETS_4 = (0.03, 0.1, 0.3, 1.0)
"""The paper's subsets of JFT-300M, 9, 30, 90 and 300 million, as fractions of it (4.3, Figure 4)."""
REGULARISATION = ((0.03, 0.0, 0.1), (0.03, 0.1, 0.0), (0.3, 0.0, 0.0), (0.3, 0.1, 0.1))
"""Weight decay, dropout and label smoothing, which the paper optimised for Figure 3: a low and a high value
of each, for the first two the ends of Table 3. Half of the eight combinations: each value of an option is
tried with both values of each other option."""
WITHOUT_DROPOUT = ((0.03, 0.0, 0.0), (0.03, 0.0, 0.1), (0.3, 0.0, 0.0), (0.3, 0.0, 0.1))
"""The same for a ResNet, which has no dropout: all four combinations."""
UNITS = ((1, 1), (2, 2), (1, 1, 1), (2, 2, 2), (3, 4, 6, 3))
WIDTHS = (0.5, 1.0)
SCALES = (1, 2)
"""Units by stage and widths of ResNets, and factors by which images are enlarged for them, because their root
leaves a quarter of each side. Of the models that keep at least half of the ViT's positions along each side,
the model of the nearest cost is taken: on images so small a usual ResNet would end with a single position."""


def _families(base: Base) -> dict[str, tuple[str, Run]]:
    """Make a ViT, a BiT ResNet and a hybrid of about the same FLOPs an image; returns label and run of each.

    Raises:
        VitkitError: the images are too small for a ResNet.
    """
    shape = base.shape
    resnets, hybrids = [], []
    for units, factor, scale in itertools.product(UNITS, WIDTHS, SCALES):
        stride = 4 * 2 ** (len(units) - 1)  # 4 of the root, and 2 of each stage after the first
        sides = zip(shape.image_size, shape.grid, strict=True)
        if any(2 * (scale * side // stride) < cells for side, cells in sides):
            continue
        trunk = f"R{'-'.join(map(str, units))}x{factor:g}"
        resnets.append(_model(base, f"BiT-{trunk}", scale))
        # One position of the ResNet's map is a token. Half of the blocks may come nearer to the ViT's cost,
        # since the ResNet costs something too.
        hybrids += [
            _model(base, f"{trunk}+{named(replace(shape, depth=depth), str(stride))}", scale)
            for depth in sorted({shape.depth, max(1, shape.depth // 2)})
        ]
    if not resnets:
        raise VitkitError(
            f"Images of {format_size(shape.image_size)} pixels are too small for a ResNet beside "
            f"{base.run.model}: give a --recipe with larger ones, or larger patches."
        )
    target = flops(base.run, base.num_classes)

    def distance(run: Run) -> float:
        return abs(math.log(flops(run, base.num_classes) / target))

    bit, hybrid = min(resnets, key=distance), min(hybrids, key=distance)
    return {
        family: (f"{LINES[family]}, {run.model} at {format_size(run.preprocessing.image_size)} pixels", run)
        for family, run in (("vit", base.run), ("bit", bit), ("hybrid", hybrid))
    }


LINES = {"vit": "ViT", "bit": "BiT", "hybrid": "hybrid", "large": "larger ViT"}
"""The families as a figure names its lines."""


def _model(base: Base, name: str, scale: int) -> Run:
    """Give the base another model, for enlarged images."""
    height, width = base.run.preprocessing.image_size
    enlarged = replace(base.run.preprocessing, image_size=(scale * height, scale * width))
    return replace(base.run, model=name, architecture=Architecture(), preprocessing=enlarged)


def _on_subsets(families: Mapping[str, tuple[str, Run]], fractions: Sequence[float]) -> list[Variant]:
    """Have families train on parts of the images, and take the best weights by validation."""
    variants = []
    for family, (label, run) in families.items():
        for fraction in fractions:
            subset = None if fraction == 1.0 else f"{fraction:g}"
            part = with_options(run, {"splits.subset": subset, "select": "best"})
            name, title = f"{family}-{fraction:g}", f"{label}, {fraction:.3g} of the images"
            variants.append(Variant(name, title, part, LINES[family], fraction))
    return variants


def data_size_regularised(base: Base) -> list[Variant]:
    """Make Figure 3: families on three sizes of data, with a search over regularisation by validation."""
    families = _families(base)
    large = replace(base.run, model=named(replace(base.shape, depth=2 * base.shape.depth)))
    families["large"] = (f"larger ViT, {large.model}", large)
    variants = []
    for variant in _on_subsets(families, SUBSETS_3):
        has_dropout = variant.line != LINES["bit"]
        for decay, dropout, smoothing in REGULARISATION if has_dropout else WITHOUT_DROPOUT:
            settings = {"weight_decay": decay, "label_smoothing": smoothing}
            run = with_options(variant.run, settings | ({"dropout": dropout} if has_dropout else {}))
            name = f"{variant.name}-decay{decay:g}-dropout{dropout:g}-smoothing{smoothing:g}"
            label = f"{variant.label}, decay {decay:g}, dropout {dropout:g}, smoothing {smoothing:g}"
            variants.append(replace(variant, name=name, label=label, run=run))
    return variants


def data_size(base: Base) -> list[Variant]:
    """Make Figure 4: families on random subsets with one recipe."""
    return _on_subsets(_families(base), SUBSETS_4)


LENGTHS = (1, 2, 4)
"""Compute of each training of Figure 5 over the shortest: each doubles the one before, as in Table 6."""


def matched_compute(base: Base) -> list[Variant]:
    """Make Figure 5: families trained for the same FLOPs, at several amounts of them."""
    cost, variants = flops(base.run, base.num_classes), []
    for family, (label, run) in _families(base).items():
        for length in LENGTHS:
            steps = length * cost / flops(run, base.num_classes)
            title = f"{label}, {length} times the compute"
            variants.append(Variant(f"{family}-{length}x", title, run, LINES[family], length, steps))
    return variants


# --- one model, one thing changed: Tables 7 and 8, Figures 8, 9 and 13 ---


POSITIONS = {
    "learned": ("1-D, stem", ""),
    "learned-every_layer": ("1-D, every layer", "-everylayer"),
    "learned-every_layer_shared": ("1-D, every layer, shared", "-shared"),
    "none": ("none", ""),
    "learned_2d": ("2-D, stem", ""),
    "learned_2d-every_layer": ("2-D, every layer", "-everylayer"),
    "learned_2d-every_layer_shared": ("2-D, every layer, shared", "-shared"),
    "relative": ("relative", ""),
}
"""The kinds of position embedding and the places where they are added, with the label of each and what the
name of such a model ends in."""


def positions(base: Base) -> list[Variant]:
    """Make Table 8: kinds of position embedding, and places where they are added."""
    variants = []
    for name, (label, ending) in POSITIONS.items():
        kind = name.partition("-")[0]
        run = with_options(base.run, {"position": kind, "model": base.run.model + ending})
        variants.append(Variant(name, label, run, name))
    return variants


RATES_7 = {"sgd": (0.03, 0.1, 0.3)}
"""Learning rates that an optimiser tries in place of multiples of the base's rate."""
MULTIPLES_7 = (1 / 3, 1.0, 3.0)
"""Learning rates that the other optimisers try, over the base's."""


def optimisers(base: Base) -> list[Variant]:
    """Make Table 7: a ResNet by Adam and by SGD; and today's question, a ViT by Adam and by Muon."""
    families = _families(base)
    variants = []
    for family, optimizer, label in (
        ("bit", "adamw", "Adam"),
        ("bit", "sgd", "SGD"),
        ("vit", "adamw", "Adam"),
        ("vit", "muon", "Muon"),
    ):
        model, run = families[family]
        settings: dict[str, str | float] = {"optimizer": optimizer}
        if optimizer == "sgd":
            # Weight decay is decoupled, so that SGD's higher rates would decay more.
            settings["weight_decay"] = run.optimizer.weight_decay / 100
        rates = RATES_7.get(optimizer) or sweep_rates(replace(run, recipe=""), MULTIPLES_7)
        name = f"{family}-{optimizer}"
        variants.append(Variant(name, f"{model}, {label}", with_options(run, settings), name, rates=rates))
    return variants


RATES_9 = (1 / 9, 1 / 3, 1.0, 3.0)
"""Learning rates of Figure 9 over the base's."""


def heads(base: Base) -> list[Variant]:
    """Make Figure 9: the class token against the mean of the patches, each at several learning rates."""
    variants = []
    for pool, label in (("token", "class token"), ("mean", "mean of the patches")):
        for rate in sweep_rates(replace(base.run, recipe=""), RATES_9):
            run = with_options(base.run, {"pool": pool, "learning_rate": rate})
            variants.append(Variant(f"{pool}-{rate:g}", f"{label}, rate {rate:g}", run, label, rate))
    return variants


def _scaled(
    shape: ViTConfig, depth: float = 1, width: float = 1, mlp: float = 1, finer: int = 1
) -> ViTConfig:
    """Scale a ViT; a larger width has more heads of the same width, and `finer` divides the patch size."""
    heads = max(1, round(width * shape.num_heads))
    return replace(
        shape,
        depth=max(1, round(depth * shape.depth)),
        width=heads * (shape.width // shape.num_heads),
        num_heads=heads,
        mlp_dim=max(1, round(mlp * shape.mlp_dim)),
        patch_size=(shape.patch_size[0] // finer, shape.patch_size[1] // finer),
    )


def shapes(base: Base) -> list[Variant]:
    """Make Figure 8: from a small base, depth, width, MLP and patches are scaled, alone and together."""
    # Half of the base, so that an arm of 4 times is twice the base.
    small = _scaled(base.shape, 1 / 2, 1 / 2, 1 / 2)
    scales: dict[str, tuple[str, str, dict[str, int]]] = {"base": ("the base", "base", {})}
    for factor in (2, 4):
        for part, line in (("depth", "depth"), ("width", "width"), ("mlp", "MLP")):
            scales[f"{part}-{factor}"] = (f"{line} times {factor}", line, {part: factor})
    if not any(side % 2 for side in small.patch_size):  # else `judge` leaves out the claims about these arms
        scales["patch-2"] = ("patches of half the side", "patch", {"finer": 2})
        scales["all-2"] = ("all of them by 2", "all", {"depth": 2, "width": 2, "mlp": 2, "finer": 2})
    variants = []
    for name, (label, line, scale) in scales.items():
        run = replace(base.run, model=named(_scaled(small, **scale)))
        variants.append(Variant(name, f"{label}, {run.model}", run, line, flops(run, base.num_classes)))
    # The first is the base.
    return [replace(variant, x=variant.x / variants[0].x) for variant in variants]


def axial(base: Base) -> list[Variant]:
    """Make Figure 13: axial attention against full attention at the same width, with two sizes of patches."""
    shape = base.shape
    coarse = replace(shape, patch_size=(2 * shape.patch_size[0], 2 * shape.patch_size[1]))
    variants = []
    for kind, prefix, label in (("vit", "", "ViT"), ("axial", "Axial-", "Axial-ViT")):
        for name, model in (("fine", shape), ("coarse", coarse)):
            run = replace(base.run, model=f"{prefix}{named(model)}")
            cost = flops(run, base.num_classes) / 1e6
            variants.append(Variant(f"{kind}-{name}", f"{label}, {run.model}", run, label, cost))
    return variants


# --- checkpoints fine-tuned: Tables 2 and 5; self-supervision ---


def finetuning(base: Base) -> list[Variant]:
    """Make a row of Table 2 or 5: the paper's fine-tuning of a checkpoint."""
    rates = sweep_rates(base.run, ())
    label = f"fine-tuned by the recipe {base.run.recipe}" if base.run.recipe else "fine-tuned"
    return [Variant("finetuned", label, base.run, "finetuned", rates=rates)]


LABELLED = 0.1
"""Fraction of the training images that keep their labels: with all labels little is left to gain."""
PRETRAINING = 3.0
"""Steps of a pre-training over the steps of the fine-tuning after it."""
TARGETS = {
    "mean-colour": ("mean colour, 50 % corrupted", MaskedPatchesConfig()),
    "4x4-colours": ("4x4 colours, 50 % corrupted", MaskedPatchesConfig(target="4x4-colours")),
    "pixels": ("all pixels, 50 % corrupted", MaskedPatchesConfig(target="pixels")),
    "mean-colour-15": ("mean colour, 15 % corrupted", MaskedPatchesConfig(mask_fraction=0.15)),
}


def self_supervision(base: Base) -> list[Variant]:
    """Make 4.6: three targets and a smaller mask fraction, fine-tuned on few labels, against scratch."""
    # The prediction of patches teaches the class token nothing: all arms read the mean of the patches.
    run = with_options(base.run, {"pool": "mean"})
    labelled = replace(run, splits=replace(run.splits, subset=f"{LABELLED:g}"))
    # Pre-training keeps the base's weight decay and rate: B.1.2 has its own for a long training.
    before, after = [], []
    for name, (label, objective) in TARGETS.items():
        training = replace(run.training, select="last", evaluate_test=False)
        unlabelled = replace(run, task="masked-patches", objective=objective, training=training)
        pretraining = f"pretrain-{name}"
        title = f"pre-training, {label}"
        before.append(Variant(pretraining, title, unlabelled, "pretrain", length=PRETRAINING, seeds=1))
        start = StartConfig(str(base.folder / pretraining / "final"))
        after.append(Variant(name, f"fine-tuned after {label}", replace(labelled, start=start), "finetune"))
    scratch = Variant("scratch", "from scratch", labelled, "finetune")
    return [*before, scratch, *after]
