"""The options of an evaluation. They need no torch."""

import math
from dataclasses import dataclass

from vitkit.data.imagenet_config import ProtocolName
from vitkit.data.loader_config import WORKER_TIMEOUT
from vitkit.engines.engine_config import Engine
from vitkit.errors import VitkitError
from vitkit.models.precision_config import Precision


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of an evaluation; the texts below the fields are their help."""

    model: str
    """a run folder, any checkpoint that vitkit convert reads, or a folder of vitkit export."""
    data: str | None = None
    """other images than those the model was trained with: digits, a folder, a .csv or .parquet files. Classes
    are matched by name."""
    split: str | None = None
    """images to evaluate on: test, val or train; left out, test if there is one."""
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
    batch_size: int = 128
    """images that are computed at a time."""
    workers: int = 0
    """processes that decode images; with 0 the main process decodes."""
    image_size: tuple[int, int] | None = None
    """height and width in pixels, or one number for both: 384, or 224 320; left out, the checkpoint's.
    Position embeddings are resized."""
    num_heads: int | None = None
    """number of attention heads, where the file does not record it."""
    max_pixels: int | None = None
    """largest number of pixels of an image; larger ones are refused. Left out, the limit that the model was
    saved with."""
    worker_timeout: float = WORKER_TIMEOUT
    """seconds to wait for a batch before the process that loads it is considered stuck; 0 waits for ever."""
    protocol: ProtocolName | None = None
    """score --data as the test set of that name is scored, for models of ImageNet's classes; left out, by the
    names of its folders."""
    labels: str | None = None
    """with --protocol, real.json of imagenet-real or the folder mappings of objectnet; left out, beside the
    images."""
    wnids: str | None = None
    """with --protocol, the WordNet ids of the model's outputs in order: a file with one at the beginning of
    each line, or a folder of class folders; left out, the model's class names or ImageNet's usual order."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise VitkitError(f"workers is 0 or more, found {self.workers}.")
        if not 0 <= self.worker_timeout < math.inf:
            raise VitkitError(
                f"Expected a worker_timeout of 0 seconds (no limit) or more, found {self.worker_timeout}."
            )
        if self.protocol is None and (self.labels is not None or self.wnids is not None):
            raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
        if self.protocol is not None and self.data is None:
            raise VitkitError(f"--protocol {self.protocol} needs --data, the folder of its images.")
        if self.protocol is not None and self.split is not None:
            raise VitkitError(f"--protocol {self.protocol} scores all images of --data: leave --split out.")
