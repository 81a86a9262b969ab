"""Choose how a model computes: the several ways to one result, and the rule that picks one.

The plain way is that of the first version, whose bits it keeps. Each of the others gives the same result up
to rounding and is faster somewhere; `docs/decisions.md` has the measurements behind the rule. What was chosen
is one value, which a run writes down when it begins, so that a resumed run keeps it.

No torch is needed here: what the rule knows of the machine is handed to it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from vitkit.models.precision_config import Precision
from vitkit.models.resnet_config import ResNetConfig
from vitkit.models.vit_config import ViTConfig

Phase = Literal["training", "evaluation", "prediction"]
"""Training computes gradients too; an evaluation is long, and a prediction may be of one image."""

NARROWEST_BFLOAT16 = 96
"""Width from which bfloat16 is chosen on a processor that has it. At 96 training is 1.7 times as fast, and
short runs end as well. At 64 it is 1.15 times as fast, and five runs of the digits ended a little worse."""

MOST_EXPLICIT_TOKENS = 640
"""Tokens up to which explicit attention is chosen. It holds a weight for every pair of them, whose memory
grows with the square; 640 are the 577 of 384 pixels, and some."""

MOST_COMPILED_FLOAT32_TOKENS = 256
"""Tokens up to which a block is compiled in float32. It holds the attention weights, which PyTorch's fused
attention does not: at 197 tokens a step takes a fifth more memory for it, at 577 two thirds more."""

HEAD_MULTIPLE = 16
"""The size of a head that a compiled block computes is a multiple of it: numbers of a vector."""

BFLOAT16_FEATURES = frozenset({"avx512_bf16", "amx_bf16"})
"""Instruction sets with products of bfloat16, as `torch.cpu.get_capabilities` names them."""


@dataclass(frozen=True)
class Compute:
    """The ways in which a model computes its result. The defaults are the plain way."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """The type of matrix products, by autocast."""
    attention: Literal["fused", "explicit"] = "fused"
    """PyTorch's fused kernel, or products and softmax one after the other."""
    last_block: Literal["every_token", "class_token"] = "every_token"
    """The tokens that the last block computes, where only the class token is read."""
    gelu: Literal["pytorch", "compiled"] = "pytorch"
    """The kernel that computes the tanh form: PyTorch's, or `kernels/gelu.c`, handed to the model."""
    pixels: Literal["normalized", "folded"] = "normalized"
    """Whether uint8 images are normalised, or the patch embedding's weights are instead."""
    block: Literal["modules", "compiled"] = "modules"
    """Whether a block is computed operation by operation, or by `kernels/block.c` between its products."""
    graph: Literal["eager", "compiled"] = "eager"
    """Whether operations run one by one, or as the kernels that torch.compile makes of a model: on a GPU."""


PLAIN = Compute()


def choose_compute(
    config: ViTConfig | ResNetConfig,
    *,
    device: str,
    features: Collection[str],
    phase: Phase,
    precision: Precision = "auto",
    exact: bool = False,
    compiler: bool = False,
) -> Compute:
    """Choose how a model computes, from what it is and what the machine has; nothing is timed.

    A rule without a clock: the same machine chooses the same every time, and so a run is repeatable.

    Args:
        config: of the model.
        device: "cpu", "cuda".
        features: instruction sets of the processor, or of the GPU "bfloat16" and "triton", which compiles.
        phase: what it computes for.
        precision: "auto" leaves it to the rule.
        exact: choose the plain way, and on a processor float32 unless bfloat16 is asked for.
        compiler: whether kernels can be compiled, which takes a second or two.
    """
    vit = config if isinstance(config, ViTConfig) else None  # a ResNet computes in the plain way alone
    if precision == "auto":
        pays = _bfloat16_pays(config, device, features, phase) and not (exact and device == "cpu")
        precision = "bfloat16" if pays else "float32"
    if exact or vit is None:
        return Compute(precision)
    compiled = compiler and device == "cpu" and vit.gelu == "tanh" and phase != "prediction"
    most = MOST_EXPLICIT_TOKENS if precision == "bfloat16" else MOST_COMPILED_FLOAT32_TOKENS
    whole = compiled and block_can_be_compiled(vit) and vit.num_tokens <= most
    whole = whole and not (phase == "training" and drops_at_random(vit))
    explicit = device == "cpu" and precision == "bfloat16" and vit.num_tokens <= MOST_EXPLICIT_TOKENS
    return Compute(
        precision,
        attention="explicit" if explicit else "fused",
        last_block="class_token" if class_token_suffices(vit) else "every_token",
        gelu="compiled" if compiled else "pytorch",
        pixels="folded" if phase != "training" and vit.backbone is None else "normalized",
        block="compiled" if whole else "modules",
        # Half a minute of compiling pays in training alone; on a processor it did not pay at all.
        graph="compiled" if device == "cuda" and phase == "training" and "triton" in features else "eager",
    )


def class_token_suffices(config: ViTConfig) -> bool:
    """Whether the last block may compute its class token alone.

    Attention between class token and patches must be plain: positions inside the attention would need rows
    and turns of their own.
    """
    return (
        config.pool == "token"
        and config.attention == "full"
        and config.position != "relative"
        and config.rotary is None
    )


def block_can_be_compiled(config: ViTConfig) -> bool:
    """Whether `kernels/block.c` computes this model's blocks, as long as they drop nothing at random."""
    plain = config.attention == "full" and config.position != "relative" and config.rotary is None
    return (
        plain
        and config.gelu == "tanh"
        and config.layer_scale is None
        and config.head_dim % HEAD_MULTIPLE == 0
    )


def drops_at_random(config: ViTConfig) -> bool:
    """Whether blocks drop numbers or images at random in training."""
    return any((config.dropout, config.attention_dropout, config.drop_path))


def _bfloat16_pays(
    config: ViTConfig | ResNetConfig, device: str, features: Collection[str], phase: Phase
) -> bool:
    """Tell whether bfloat16 is faster, and its rounding acceptable unasked.

    On a processor a finished model gives float32's numbers unless bfloat16 is asked for: an evaluation must
    not depend on the instruction sets of the machine it was made on. Convolutions gain as dense layers do:
    the training step of narrow BiT ResNets was 1.4 to 2.2 times as fast (a core of an EPYC with avx512_bf16).
    """
    if device != "cpu":
        return "bfloat16" in features
    wide = config.width >= NARROWEST_BFLOAT16
    return wide and phase == "training" and not BFLOAT16_FEATURES.isdisjoint(features)
