"""A data set is checked without a word; a listener hears how far it is."""

import pytest

from tests.jobs.recorder import Recorder
from vitkit.data.config import Splits
from vitkit.jobs.data_show import check


def test_a_check_prints_nothing_and_tells_how_far_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    data_check = check("digits", splits=Splits(val_fraction=0.2), listener=recorder)
    assert capfd.readouterr() == ("", "")
    count = sum(sum(counts.values()) for counts in data_check.counts.values())
    assert recorder.loops == {
        "listing images": [],
        "reading images": [(done, count) for done in range(1, count + 1)],
    }
    assert data_check.notes and data_check.to_json()["notes"] == data_check.notes
