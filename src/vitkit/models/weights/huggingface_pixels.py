"""How Hugging Face's `preprocessor_config.json` and our own preprocessing say the same."""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from vitkit.errors import VitkitError
from vitkit.models.image_config import format_size
from vitkit.models.weights.huggingface_settings import LARGEST, Processor, settings_of
from vitkit.models.weights.source import Source
from vitkit.models.zoo import ModelConfig

_log = logging.getLogger("vitkit")

RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")
"""Pillow's numbers."""
BILINEAR = 2


def read_pixels(source: Source, channels: int) -> tuple[Processor, tuple[float, ...], tuple[float, ...]]:
    """The processor, and mean and std of pixels in [0, 1]."""
    if not source.preprocessor:
        _log.warning(
            "%s: no preprocessor_config.json beside it: pixel mean and std are taken to be 0.5", source.path
        )
    said = settings_of(Processor, source, "preprocessor_config.json")
    # They scale pixels by any factor before the mean is taken off; we, by 1/255.
    if said.do_rescale and said.rescale_factor <= 0:
        raise VitkitError(f"{_where(source)}: rescale_factor is above 0, found {said.rescale_factor}.")
    scale = 255 * said.rescale_factor if said.do_rescale else 255.0
    if math.isclose(scale, 1, rel_tol=1e-6):
        scale = 1.0
    statistics = []
    for values in (said.image_mean, said.image_std) if said.do_normalize else (0.0, 1.0):
        several = (values,) if isinstance(values, float) else values
        if len(several) != channels:
            if len(set(several)) != 1:
                raise VitkitError(
                    f"{source.path}: preprocessor_config.json has the pixel statistics {list(several)} for "
                    f"images of {channels} channels: give one value for each."
                )
            several = several[:1] * channels
        statistics.append(tuple(value / scale for value in several))
    return said, statistics[0], statistics[1]


def read_preprocessing(source: Source, said: Processor, size: tuple[int, int]) -> dict[str, Any]:
    """The same in our words, as `vitkit.data.transforms.Preprocessing` has them; a difference is logged."""
    if not source.preprocessor:
        return {}
    differences = []
    ours: dict[str, Any] = {"image_size": list(size), "resize": "stretch", "antialias": True}
    edges = said.size if isinstance(said.size, Mapping) else {}
    resized = size_of(source, said, "size")
    if said.do_center_crop and said.do_resize and resized is not None:
        cropped = size_of(source, said, "crop_size") or size
        fraction = min(cropped) / min(resized)
        if fraction > 1:
            differences.append("black borders where the crop is larger than the image (here: none)")
        ours |= {"resize": "crop", "crop_fraction": min(fraction, 1.0)}
        if "height" in edges or said.image_processor_type.startswith("DeiT"):
            differences.append(
                f"stretching to {format_size(resized)} before the crop (here: proportions are kept)"
            )
    elif said.do_center_crop:
        ours |= {"resize": "crop", "crop_fraction": 1.0}
        differences.append("a crop of images that were not resized (here: resized to cover it)")
    elif "shortest_edge" in edges:
        differences.append("the proportions of the image (here: stretched to the model's size)")
    if said.do_resize and said.resample != BILINEAR:
        known = 0 <= said.resample < len(RESAMPLING)
        name = RESAMPLING[said.resample] if known else str(said.resample)
        differences.append(f"{name} resizing (here: bilinear)")
    if differences:
        _log.warning("%s: its images were prepared with %s", source.path, "; ".join(differences))
    return ours


def write_processor(config: ModelConfig, preprocessing: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`preprocessor_config.json`: as we prepare images, as near as theirs can."""
    rows, columns = config.image_size
    fraction = preprocessing.get("crop_fraction", 0.875)
    ours: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": rows, "width": columns},
        "resample": BILINEAR,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.image_mean),
        "image_std": list(config.image_std),
    }
    differences = []
    if preprocessing.get("resize") == "crop" and rows == columns:
        ours |= {  # ViT's own processor has no central crop, BiT's has, for any model
            "image_processor_type": "BitImageProcessor",
            "size": {"shortest_edge": round(rows / fraction)},
            "do_center_crop": True,
            "crop_size": {"height": rows, "width": columns},
        }
    elif preprocessing.get("resize") == "crop":
        differences.append("a central crop that is not square (theirs: stretched)")
    if not preprocessing.get("antialias", True):
        differences.append("resizing without antialiasing (theirs: with)")
    if differences:
        _log.warning("%s: preprocessor_config.json cannot say: %s", path, "; ".join(differences))
    return ours


def size_of(source: Source, said: Processor, name: Literal["size", "crop_size"]) -> tuple[int, int] | None:
    """A size in any of their ways to write it, as (height, width).

    Raises:
        VitkitError: a side that is no whole number of at least 1, or beyond all measure.
    """
    value: Any = getattr(said, name)
    edges = value if isinstance(value, Mapping) else {"shortest_edge": value}
    height: Any = edges.get("height")
    width: Any = edges.get("width")
    if height is None or width is None:
        height = width = edges.get("shortest_edge")
    if height is None:
        return None
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, int) or not 1 <= side <= LARGEST:
            raise VitkitError(
                f"{_where(source)}: {name}: a side is a whole number from 1 to {LARGEST}, found {value!r}."
            )
    return height, width


def _where(source: Source) -> Path:
    return source.path.with_name("preprocessor_config.json")


def one_number(size: tuple[int, int]) -> int | tuple[int, int]:
    return size[0] if size[0] == size[1] else size
