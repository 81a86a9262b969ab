"""A listener that keeps what it hears."""

from collections.abc import Iterator
from contextlib import contextmanager

from vitkit.listener import Listener, Progress


class Recorder(Listener):
    """Keeps, for each loop, its name and how far it said it was."""

    def __init__(self) -> None:
        self.loops: dict[str, list[tuple[int, int | None]]] = {}

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        steps = self.loops.setdefault(what, [])
        first = total

        def progress(
            done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
        ) -> None:
            steps.append((done, first if total is None else total))

        yield progress
