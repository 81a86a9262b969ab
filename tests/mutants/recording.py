"""A plugin of pytest that notes, under coverage, which tests run which lines, and how long each takes."""

import copy
import json
import os
from pathlib import Path

import pytest

REPORT = "VITKIT_TEST_SECONDS"
"""The environment variable that names the file of the tests' seconds."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    import coverage  # of the extra `mutants`; the file name above is read without it

    if (measuring := coverage.Coverage.current()) is not None:
        measuring.switch_context(item.nodeid)
        of_processes = copy.copy(measuring.config)
        of_processes.context = item.nodeid
        os.environ["COVERAGE_PROCESS_CONFIG"] = of_processes.serialize()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # the process that hears of all tests
        line = json.dumps((report.nodeid, report.duration, report.passed))
        with Path(os.environ[REPORT]).open("a") as file:
            file.write(line + "\n")
