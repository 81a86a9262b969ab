"""A stand-in for the training of the runs of a series."""

import pytest

from tests.helpers.series import Pretended
from vitkit.jobs import train as job
from vitkit.runs import series_record


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Pretended:
    pretended = Pretended()
    monkeypatch.setattr(job, "train_run", pretended.train)
    monkeypatch.setattr(series_record, "read_score", pretended.read_score)
    return pretended
