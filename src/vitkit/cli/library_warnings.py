"""Print the warnings of the library as all other text is printed."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print the warnings of the library while a command runs."""
    handler, logger = _Printing(logging.WARNING), logging.getLogger("vitkit")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Printing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        from vitkit.cli import console  # rich, which few commands need so early

        console.err.print(record.getMessage(), markup=False, soft_wrap=True)
