"""The options of a look at a checkpoint. They need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CardOptions:
    """Which checkpoint is looked at, and what its file may not say."""

    file: str
    """a run folder, a file or folder of any library, or an address (hf:..., https://...)."""
    image_size: tuple[int, int] | None = None
    """height and width, where the file does not say it."""
    num_heads: int | None = None
    """of the attention, where the file does not say it."""
