"""The options of a prediction. They need no torch."""

from dataclasses import dataclass

from vitkit.engines.engine_config import Engine
from vitkit.errors import VitkitError
from vitkit.models.precision_config import Precision


@dataclass(frozen=True)
class PredictOptions:
    """The options of a prediction; the texts below the fields are their help."""

    model: str
    """a run folder, any checkpoint that vitkit convert reads, or a folder of vitkit export."""
    images: tuple[str, ...]
    """image files, folders, or - for a list of paths on standard input."""
    top: int = 5
    """number of classes to name for each image; a multi-label model always names all labels."""
    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, cuda or cuda:1."""
    precision: Precision = "auto"
    """number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it, else
    float32."""
    exact: bool = False
    """compute with the operations of the first version of vitkit, without the faster ways to the same
    result."""
    engine: Engine | None = None
    """what computes: torch, or an extra, openvino or onnxruntime; left out, the one that a folder of vitkit
    export is for, else torch."""
    batch_size: int = 32
    """images that are computed at a time."""
    image_size: tuple[int, int] | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, the checkpoint's.
    Position embeddings are resized."""
    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""
    max_pixels: int | None = None
    """largest number of pixels of an image; larger ones are refused. Left out, the limit that the model was
    saved with."""

    def __post_init__(self) -> None:
        if not self.images:
            raise VitkitError("Which images? Give files, folders, or - to read paths from standard input.")
        if self.top < 1 or self.batch_size < 1:
            raise VitkitError(f"top and batch_size are at least 1, found {self.top} and {self.batch_size}.")
