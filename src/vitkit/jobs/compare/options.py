"""The options of a comparison of two models. They need no torch."""

import math
from dataclasses import KW_ONLY, dataclass

from vitkit.errors import VitkitError
from vitkit.jobs.options import BatchOptions, JobOptions, MachineOptions, PrecisionOptions, StrPath


@dataclass(frozen=True)
class CompareOptions(BatchOptions, PrecisionOptions, MachineOptions, JobOptions):
    """The options of a comparison of two models; the texts below the fields are their help."""

    first: StrPath
    """a run folder, a series, any checkpoint, a folder of vitkit export, an address or a published name."""
    second: StrPath
    """another model of the same classes; differences are its numbers minus the first model's."""
    data: str | None = None
    """other images than those that the models were trained with: digits, a folder, a .csv or .parquet files;
    left out, the images of the first model that records its own."""
    _: KW_ONLY
    split: str | None = None
    """images that both are tested on: test, val or train, or a part of them such as "test[:10%]"; left out,
    test if there is one."""
    out: str | None = None
    """folder of the page and of the evaluations; left out, runs/compare-FIRST-SECOND."""
    speed_seconds: float = 5.0
    """seconds for which the speed of both is measured, in turns; 0 measures none."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if self.batch_size < 1:
            raise VitkitError(f"batch_size is at least 1, found {self.batch_size}.")
        if not 0 <= self.speed_seconds < math.inf:
            raise VitkitError(f"speed_seconds is 0 or more, found {self.speed_seconds}.")
