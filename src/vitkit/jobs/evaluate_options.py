"""The options of an evaluation. They need no torch."""

import math
from dataclasses import KW_ONLY, dataclass

from vitkit.data.config import WORKER_TIMEOUT
from vitkit.data.imagenet_config import ProtocolName
from vitkit.errors import VitkitError
from vitkit.jobs.options import BatchOptions, JobOptions, ModelOptions, StrPath


@dataclass(frozen=True)
class MeasuringOptions(ModelOptions, BatchOptions, JobOptions):
    """The options of every evaluation; the texts below the fields are their help."""

    _: KW_ONLY
    worker_timeout: float = WORKER_TIMEOUT
    """seconds to wait for a batch before the process that loads it is considered stuck; 0 waits for ever."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if not 0 <= self.worker_timeout < math.inf:
            raise VitkitError(
                f"Expected a worker_timeout of 0 seconds (no limit) or more, found {self.worker_timeout}."
            )


@dataclass(frozen=True)
class EvaluateOptions(MeasuringOptions):
    """The options of an evaluation on images with labels."""

    data: str | None = None
    """other images than those the model was trained with: digits, a folder, a .csv or .parquet files. Classes
    are matched by name."""
    split: str | None = None
    """images to evaluate on: test, val or train; left out, test if there is one."""


@dataclass(frozen=True, kw_only=True)
class ProtocolFiles:
    """The files that a protocol reads beside the images."""

    labels: StrPath | None = None
    """with a protocol, real.json of imagenet-real or the folder mappings of objectnet; left out, beside the
    images."""
    wnids: StrPath | None = None
    """with a protocol, the WordNet ids of the model's outputs in order: a file with one at the beginning of
    each line, or a folder of class folders; left out, the model's class names or ImageNet's usual order."""


@dataclass(frozen=True)
class ProtocolOptions(ProtocolFiles, MeasuringOptions):
    """The options of an evaluation as one of ImageNet's test sets is scored."""

    data: StrPath
    """the folder of the test set's images."""
    protocol: ProtocolName
    """the test set: imagenet-real, imagenet-a, objectnet and so on."""
