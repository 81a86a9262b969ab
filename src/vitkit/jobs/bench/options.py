"""The options of a benchmark. They need no torch."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from vitkit.errors import VitkitError
from vitkit.jobs.options import JobOptions
from vitkit.models.config.compute_config import Precision

PAPER_SIZES = (64, 128, 224, 384, 512)
"""Pixels a side that the paper's Figure 12 shows (Appendix D.5)."""


@dataclass(frozen=True)
class BenchOptions(JobOptions):
    """The options of a benchmark: which models are timed, and for how long. VITKIT_NO_KERNELS=1 switches
    compiled kernels off."""

    models: tuple[str, ...]
    """names (ViT-S/16), run folders or checkpoints; only their shapes matter."""
    _: KW_ONLY
    image_size: int | str = ""
    """pixels a side: 224, or 64,128,224, or 64..512 for the paper's sizes between these; left out, 224 or the
    checkpoint's own."""
    batch_size: int = 8
    """images at a time; fewer where a step would outlast its part of --minutes."""
    training: bool = True
    """time training steps as well as inference."""
    peers: bool = False
    """time other libraries in turns with vitkit, whichever are installed."""
    minutes: float = 1.0
    """for each model, all sizes together; large models take longer, for each is timed a few times."""
    precision: Precision = "auto"
    """auto times float32, and bfloat16 where the device has it."""
    memory_gb: float | None = None
    """memory for the largest batch, in GB; left out, what is free."""
    threads: int | None = None
    """of the processor; left out, as PyTorch chooses."""
    device: str = "auto"
    """auto, cpu, cuda."""

    def __post_init__(self) -> None:
        if not self.models:
            raise VitkitError("Name a model: vitkit bench ViT-S/16. Names are listed by vitkit models.")
        for name in ("batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitkitError(f"{name} is at least 1, found {value}.")
        for name in ("minutes", "memory_gb"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise VitkitError(f"{name} is a number above 0, found {value}.")
        _ = self.image_sizes

    @property
    def phases(self) -> tuple[Literal["inference", "training"], ...]:
        """Return the phases that are timed."""
        return ("inference", "training") if self.training else ("inference",)

    @property
    def image_sizes(self) -> tuple[int, ...]:
        """Return the sizes in pixels; empty where each model has its own.

        Raises:
            VitkitError: `image_size` is no list and no range of numbers.
        """
        sizes = str(self.image_size)
        if not sizes:
            return ()
        first, dots, last = sizes.partition("..")
        sides = [first, last] if dots else sizes.split(",")
        if not all(side.strip().isascii() and side.strip().isdigit() and int(side) for side in sides):
            raise VitkitError(
                f"image_size is pixels a side, as 224 or 64,128,224 or 64..512, found '{sizes}'."
            )
        numbers = tuple(map(int, sides))
        if not dots:
            return tuple(dict.fromkeys(numbers))
        within = tuple(size for size in PAPER_SIZES if numbers[0] <= size <= numbers[1])
        if not within:
            raise VitkitError(
                f"{sizes} has none of the paper's sizes {', '.join(map(str, PAPER_SIZES))}. Give sizes "
                "with commas between them."
            )
        return within
