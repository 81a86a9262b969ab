"""Processes that the tests of training share: to start them takes longer than most of these tests."""

from collections.abc import Iterator

import pytest

from tests.helpers.processes import Processes


@pytest.fixture(scope="package")
def processes() -> Iterator[Processes]:
    with Processes(3) as started:
        yield started
