"""One thread for every test process: pytest-xdist uses the cores, and small models gain nothing from two.

`scripts/test-processors` asks for two as well: sums that are split over threads round differently.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# OMP_NUM_THREADS is for the processes that tests start, too.
os.environ["OMP_NUM_THREADS"] = os.environ.get("VITKIT_TEST_THREADS", "1")

# A shell that starts the tests in the background has Ctrl-C ignored, and what is ignored stays ignored in the
# processes that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The width of what commands print may not depend on where the tests run.
os.environ.pop("COLUMNS", None)

import pytest
import torch

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture(scope="module")
def without_report() -> Iterator[None]:
    """Write a word in place of a run's report while a module's tests last: its pictures take seconds."""

    def write_report(folder: Path, **_options: Any) -> Path:
        (folder / "report.html").write_text("a report")
        return folder / "report.html"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitkit.jobs.train.write_report", write_report)
        yield
