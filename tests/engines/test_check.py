"""check.py, which goes with every bundle, decodes and resizes as vitkit does, by Pillow and numpy alone."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest

from vitkit.config import to_json
from vitkit.data.config import DecodeRule, Interpolation, Preprocessing, Resize
from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.engines import check
from vitkit.engines.golden import make_golden_files

OFFSETS: tuple[Literal["even", "down"], ...] = ("even", "down")
SHAPES = ((40, 61), (61, 40), (16, 24), (9, 9), (300, 20))


@pytest.mark.parametrize("way", get_args(Resize))
def test_images_are_resized_as_vitkit_does(way: Resize) -> None:
    generator = np.random.default_rng(0)
    images = [generator.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in SHAPES]
    rules = [
        Preprocessing(
            size, way, fraction, antialias, interpolation=kind, crop_offset=offset, border=(1, 2, 3)
        )
        for size, fraction, antialias, kind, offset in product(
            ((16, 24), (15, 15)), (0.875, 1.0, 1.3), (True, False), get_args(Interpolation), OFFSETS
        )
        if (antialias or kind == "bilinear") and not (way == "crop" and fraction > 1)
    ]
    assert len(rules) >= 28
    for rule, image in product(rules, images):
        np.testing.assert_array_equal(check.preprocess(image, to_json(rule)), preprocess(image, rule))


@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("rule", [{}, {"apply_exif": False, "jpeg_side": 60, "background": (9, 99, 0)}])
def test_golden_images_are_decoded_as_vitkit_does(channels: int, rule: Any, tmp_path: Path) -> None:
    decoding = replace(DecodeRule(channels=channels), **rule)
    fitting = Preprocessing((20, 30), "longest", border=(1, 2, 3), decode=decoding)
    for name, data in make_golden_files(channels).items():
        (tmp_path / name).write_bytes(data)
        expected, decoded = decode(data, decoding), check.decode(tmp_path / name, to_json(decoding))
        np.testing.assert_array_equal(decoded, expected, name)
        assert expected.shape[2] == channels
        np.testing.assert_array_equal(
            check.preprocess(decoded, to_json(fitting)), preprocess(decoded, fitting)
        )
