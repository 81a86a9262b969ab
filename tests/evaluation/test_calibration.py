"""Bins of confidence, as Guo et al. have them: a bin holds its upper end and not its lower one."""

import numpy as np
import pytest

from vitkit.evaluation.classify import CALIBRATION_BINS, calibration_bins


@pytest.mark.parametrize(("confidence", "number"), [(0.0, 0), (0.2, 2), (0.6, 8), (0.61, 9), (1.0, 14)])
def test_a_confidence_on_the_edge_is_in_the_bin_below(confidence: float, number: int) -> None:
    bins = calibration_bins(np.array([confidence]), np.array([True]))
    assert [interval.count for interval in bins] == [int(i == number) for i in range(CALIBRATION_BINS)]
    assert bins[number].lower <= confidence <= bins[number].upper and bins[number].accuracy == 1
