"""The options of a look at a checkpoint. They need no torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CardOptions:
    """The options of `vitkit card`; the texts below the fields are their help."""

    file: str
    """a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
    https://...)."""
    image_size: tuple[int, int] | None = None
    """height and width in pixels, or one number for both, where the file does not record them."""
    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""
