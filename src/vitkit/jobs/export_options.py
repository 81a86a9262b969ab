"""The options of an export to an inference engine. They need no torch."""

from dataclasses import KW_ONLY, dataclass

from vitkit.engines.engine_config import GraphEngine, Numbers
from vitkit.errors import VitkitError
from vitkit.jobs.options import CheckpointOptions, JobOptions, SourceOptions, StrPath

FEWEST = 10
"""Images below which neither ranges nor agreement say anything."""


@dataclass(frozen=True)
class ExportOptions(CheckpointOptions, JobOptions, SourceOptions):
    """The options of an export; the texts below the fields are their help."""

    out: StrPath
    """folder of the graph, which must not exist yet."""
    engine: GraphEngine = "openvino"
    """what is to compute it: openvino or onnxruntime, extras of the same names."""
    precision: Numbers = "float32"
    """numbers of matrix products: float32, bfloat16 or int8. OpenVINO has all three; int8 is calibrated on
    images."""
    _: KW_ONLY
    calibration: str | None = None
    """images for int8, like those it will see: a folder of images, labels or not, or any --data; left out,
    the training images of a run. Some of them are kept apart to compare the result with float32."""
    calibration_images: int = 300
    """most images that ranges are found on."""
    check_images: int = 500
    """most images, others than those, that the result is compared with float32 on."""
    accept_change: bool = False
    """keep a result that answers otherwise than float32 on more than 1 % of the images."""

    def __post_init__(self) -> None:
        if min(self.calibration_images, self.check_images) < FEWEST:
            raise VitkitError(
                f"calibration_images and check_images are at least {FEWEST}, found {self.calibration_images} "
                f"and {self.check_images}."
            )
