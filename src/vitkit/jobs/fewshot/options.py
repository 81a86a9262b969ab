"""The options of a few-shot evaluation, of checkpoints and while a model is trained."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import L2, METHODS, SHOTS, Method, listed
from vitkit.jobs.options import (
    BatchOptions,
    CacheOptions,
    JobOptions,
    LoadingOptions,
    PrecisionOptions,
    StrPaths,
    as_names,
)


@dataclass(frozen=True)
class FewShotOptions(LoadingOptions, PrecisionOptions, BatchOptions, CacheOptions, JobOptions):
    """The options of a few-shot evaluation; the texts below the fields are their help."""

    starts: StrPaths
    """run folders, or any checkpoints that vitkit convert reads; several are compared on the same images."""
    data: str
    """images with labels: "digits" (built in), a folder of class folders, a .csv or a folder of .parquet. The
    shots are drawn from its training images."""
    _: KW_ONLY
    shots: Sequence[int] = SHOTS
    """numbers of images of each class to learn from, with commas between."""
    seeds: int = 3
    """number of times the shots are drawn: with the seeds 0, 1, 2 and so on."""
    methods: Sequence[Method] = METHODS
    """ridge (the paper's few-shot accuracy: least squares in closed form), knn (nearest neighbours by
    cosine), logistic (regression), with commas between."""
    l2: float = L2
    """strength of the L2 penalty of ridge; the original code uses 1024."""
    neighbours: int | None = None
    """number of neighbours of knn; left out, it is chosen on the shots."""

    def __post_init__(self) -> None:
        if not self.checkpoints:
            raise VitkitError("Which model? Give a run folder, a checkpoint or an address, or several.")
        if not self.data:
            raise VitkitError("Which images? Give data: a path, or digits for the built-in ones.")
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

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """The checkpoints that are compared."""
        return as_names(self.starts)
