"""The options of an evaluation. They need no torch."""

from dataclasses import dataclass

from vitkit.models.precision_config import Precision


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of an evaluation; what is written below them is their help."""

    model: str
    """run folder, or any checkpoint that vitkit convert reads."""
    data: str | None = None
    """other images than those the model was trained with; classes are matched by name."""
    split: str | None = None
    """test, val or train; left out, test if there is one."""
    device: str = "auto"
    """auto, cpu, cuda."""
    precision: Precision = "auto"
    """of the arithmetic: float32 or bfloat16; auto: bfloat16 on a GPU that has it, else float32."""
    batch_size: int = 128
    """images at a time."""
    workers: int = 0
    """processes that decode images."""
    image_size: tuple[int, int] | None = None
    """height and width, or one number for both; left out, the checkpoint's. Position embeddings are
    resized."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""
