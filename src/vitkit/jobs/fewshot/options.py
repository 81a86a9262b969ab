"""The options of a few-shot evaluation, of checkpoints and while a model is trained."""

from dataclasses import dataclass

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot_config import L2, METHODS, SHOTS, Method, listed
from vitkit.models.precision_config import Precision


@dataclass(frozen=True)
class FewShotOptions:
    """The options of a few-shot evaluation; the texts below the fields are their help."""

    starts: tuple[str, ...]
    """run folders, or any checkpoints that vitkit convert reads; several are compared on the same images."""
    data: str = ""
    """images with labels: "digits" (built in), a folder of class folders, a .csv or a folder of .parquet. The
    shots are drawn from its training images."""
    shots: tuple[int, ...] = SHOTS
    """numbers of images of each class to learn from, with commas between."""
    seeds: int = 3
    """number of times the shots are drawn: with the seeds 0, 1, 2 and so on."""
    methods: tuple[Method, ...] = METHODS
    """ridge (the paper's few-shot accuracy: least squares in closed form), knn (nearest neighbours by
    cosine), logistic (regression), with commas between."""
    l2: float = L2
    """strength of the L2 penalty of ridge; the original code uses 1024."""
    neighbours: int | None = None
    """number of neighbours that knn asks; left out, it is chosen on the shots."""
    out: str | None = None
    """folder for the numbers and the plot; left out, fewshot/ in the run folder, or in the working folder."""
    cache: bool = True
    """keep the features of images in the user's cache folder, and use those that are there."""
    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, cuda or cuda:1."""
    precision: Precision = "auto"
    """number format of the computation: float32, bfloat16, or auto: bfloat16 on a GPU that has it, else
    float32."""
    batch_size: int = 128
    """images that are computed at a time."""
    workers: int = 0
    """processes that decode images; with 0 the main process decodes."""
    image_size: tuple[int, int] | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, each checkpoint's.
    Position embeddings are resized."""
    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""

    def __post_init__(self) -> None:
        if not self.starts:
            raise VitkitError("Which model? Give a run folder, a checkpoint or an address, or several.")
        if not self.data:
            raise VitkitError("Which images? Give --data PATH, or --data digits for the built-in ones.")
        if not self.shots or min(self.shots) < 1:
            raise VitkitError(f"shots are numbers of images from 1, found {listed(self.shots)}.")
        if not self.methods or not set(self.methods) <= set(METHODS):
            raise VitkitError(f"methods are among {listed(METHODS)}, found {listed(self.methods)}.")
        if self.seeds < 1 or self.batch_size < 1:
            raise VitkitError(
                f"seeds and batch_size are at least 1, found {self.seeds} and {self.batch_size}."
            )
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if not 0 < self.l2 < float("inf"):
            raise VitkitError(f"l2 is a number above 0, found {self.l2}.")
        if self.neighbours is not None and self.neighbours < 1:
            raise VitkitError(f"neighbours is at least 1, found {self.neighbours}.")
