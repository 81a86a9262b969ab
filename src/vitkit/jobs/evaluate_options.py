"""The options of an evaluation. They need no torch."""

import math
from dataclasses import dataclass

from vitkit.data.loader_config import WORKER_TIMEOUT
from vitkit.errors import VitkitError
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
    exact: bool = False
    """compute as the first version did, without the faster ways to the same result."""
    batch_size: int = 128
    """images at a time."""
    workers: int = 0
    """processes that decode images."""
    image_size: tuple[int, int] | None = None
    """height and width, or one number for both; left out, the checkpoint's. Position embeddings are
    resized."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""
    max_pixels: int | None = None
    """larger images are refused; left out, the limit that the model was saved with."""
    worker_timeout: float = WORKER_TIMEOUT
    """seconds that a batch is waited for before the process that makes it is taken to hang; 0 waits for
    ever."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if not 0 <= self.worker_timeout < math.inf:
            raise VitkitError(
                f"Expected a worker_timeout of 0 seconds (no limit) or more, found {self.worker_timeout}."
            )
