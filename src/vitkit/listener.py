"""Listeners, to which jobs report their notes, warnings and progress. Jobs themselves print nothing.

A job without a listener of its own is silent in a script. In a notebook it shows a bar, and curves of a run's
loss and score, both updated in place; IPython is never imported: in the kernel of a notebook it is loaded
already, and its display objects are used.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from vitkit.errors import in_python
from vitkit.result import escape
from vitkit.text import format_bytes, format_duration, visible


class Progress(Protocol):
    """A function that is called with the progress of a loop."""

    def __call__(
        self, done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
    ) -> None:
        """Take note that `done` of `total` units are done.

        Args:
            done: images, steps or bytes so far.
            total: images, steps or bytes in all; None if unknown, or unchanged.
            detail: further figures to show, in a few words.
            milestone: whether this moment is worth a line of its own in a log, as a validation is.
        """


Measured = Callable[[Mapping[str, Any]], None]
"""A function that is called with each line of metrics.jsonl: `kind` ("train", "validation", or "evaluation"
with the name of its `evaluator`), the number `step`, the passes over the images `epoch`, and further numbers
by name, such as `loss` and `accuracy`."""


def added_up(progress: Progress) -> Callable[[int], None]:
    """Return a function to call with the size of each batch, which reports their sum to `progress`."""
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done)

    return advance


class Listener:
    """Hears how a job goes. This class does nothing: a subclass overrides the methods that it needs.

    `vitkit.cli.console.TerminalListener` shows bars and prints sentences, and `NotebookListener`
    does so in a notebook.
    """

    relayed_to: "Listener | None" = None
    """The listener that hears what a subclass does not hear itself; None where there is none."""

    def note(self, sentence: str) -> None:
        """Hear a sentence that a person should read and that is no error."""
        if self.relayed_to is not None:
            self.relayed_to.note(sentence)

    def warn(self, sentence: str) -> None:
        """Hear of a probable mistake."""
        if self.relayed_to is not None:
            self.relayed_to.warn(sentence)

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        """Hear a summary: headings, each with its lines."""
        if self.relayed_to is not None:
            self.relayed_to.show(rows)

    def progress(
        self, what: str, total: int | None = None, *, unit: str = ""
    ) -> AbstractContextManager[Progress]:
        """Hear the progress of a loop while the block lasts.

        Args:
            what: the name of the work, such as "reading images".
            total: its units; None if unknown.
            unit: "bytes" for downloads; left out for anything that is counted.
        """
        if self.relayed_to is not None:
            return self.relayed_to.progress(what, total, unit=unit)
        return nullcontext(lambda *_, **__: None)

    def run(self, folder: Path, step: int, total: int) -> AbstractContextManager[Measured]:
        """Hear the numbers of a training run while the block lasts.

        A run that was killed makes the steps after its last checkpoint again, to the same numbers, so that a
        listener with a log of its own may hear numbers that it has logged already.

        Args:
            folder: of the run, which holds `config.json` and `metrics.jsonl`.
            step: the steps made before; 0 where the run begins.
            total: the steps of the whole run.
        """
        if self.relayed_to is not None:
            return self.relayed_to.run(folder, step, total)
        return nullcontext(lambda line: None)


SILENT = Listener()


class WarningsAlone(Listener):
    """Passes warnings alone on to a listener: a mistake must not be silent."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def warn(self, sentence: str) -> None:
        self.listener.warn(sentence)


def hushed(listener: Listener, quiet: bool) -> Listener:
    """Return the listener; with `quiet` one that passes on warnings alone."""
    return WarningsAlone(listener) if quiet else listener


UPDATE_SECONDS = 0.2
"""Seconds between two updates of a picture: no eye sees more of them, and each costs a message."""
WIDTH, HEIGHT = 340, 150
"""Pixels of a curve: two curves stand side by side in the column of a notebook."""
MARGIN = 8
"""Pixels around a curve, so that its line is not cut."""
MOST_POINTS = 500
"""Points of a curve that are drawn: more points than pixels cost time and show nothing."""
# Blue and orange, which everybody tells apart, on white and on black.
COLOURS = ("#1f77b4", "#d95f02")


class NotebookListener(Listener):
    """Shows what a job tells below the cell that runs it.

    Args:
        display: IPython's function of that name.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self.display = display

    def note(self, sentence: str) -> None:
        print(visible(in_python(sentence)))

    def warn(self, sentence: str) -> None:
        print(f"Warning: {visible(in_python(sentence))}")

    def show(self, rows: list[tuple[str, list[str]]]) -> None:
        # At least 8, so that the lines of short summaries one after the other are aligned.
        width = max(8, *(len(heading) for heading, _ in rows)) if any(heading for heading, _ in rows) else 0
        for heading, lines in rows:
            for line in lines:
                print(visible(f"{heading:{width}}  {line}" if width else line))
                heading = ""  # once, before its first line

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        bar = Bar(what, total, in_bytes=unit == "bytes")
        with self._live(bar) as update:

            def progress(
                done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
            ) -> None:
                bar.done, bar.total, bar.detail = done, bar.total if total is None else total, detail
                update()

            yield progress
            bar.over = True  # not in a `finally`: the bar of an interrupted loop stays visible

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        curves = Curves(total)
        with self._live(curves) as update:

            def measured(line: Mapping[str, Any]) -> None:
                curves.add(line)
                update()

            yield measured

    @contextmanager
    def _live(self, view: "Bar | Curves") -> Iterator[Callable[[], None]]:
        """Show a view while the block lasts, and give a function that updates it, at most at an interval."""
        handle, last = self.display(view, display_id=True), time.monotonic()

        def update() -> None:
            nonlocal last
            if time.monotonic() - last >= UPDATE_SECONDS:
                handle.update(view)
                last = time.monotonic()

        try:
            yield update
        finally:
            handle.update(view)


@dataclass(repr=False)  # a notebook stores the text beside the HTML
class Bar:
    """The progress of a loop."""

    what: str
    total: int | None
    in_bytes: bool = False
    done: int = 0
    detail: str = ""
    over: bool = False
    """Whether the loop has ended: then nothing is shown any more."""
    began: float = field(default_factory=time.monotonic)

    def _repr_html_(self) -> str:
        if self.over:
            return ""
        value = "" if not self.total else f' value="{min(self.done, self.total)}" max="{self.total}"'
        bar = f'<progress{value} style="width:16em"></progress>'
        parts = [escape(self.what), bar, *map(escape, (self._count(), self._left(), self.detail))]
        return f'<div style="font-variant-numeric:tabular-nums">{"&ensp;".join(filter(None, parts))}</div>'

    def _count(self) -> str:
        counts = [count for count in (self.done, self.total) if count is not None]
        if counts == [0]:
            return ""
        return " of ".join(format_bytes(count) if self.in_bytes else f"{count:,}" for count in counts)

    def _left(self) -> str:
        """Say how long the rest takes at the speed so far."""
        if not self.total or not 0 < self.done < self.total:
            return ""
        seconds = (time.monotonic() - self.began) * (self.total - self.done) / self.done
        return f"{format_duration(seconds)} left"


@dataclass(repr=False)  # as of a bar: all points would be in it
class Curves:
    """The loss of a run and the score of its validations, by step."""

    total: int
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    """Steps and values, by the names "training loss", "validation loss" and the name of the score."""

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of a line of the metrics log, if it is of training or validation."""
        values = {"training loss": line["loss"]} if line["kind"] == "train" else {}
        if line["kind"] == "validation":
            scores = [name for name in line if name not in ("kind", "step", "epoch") and "loss" not in name]
            values = {"validation loss": line["loss"]}
            values |= {name.replace("_", " "): line[name] for name in scores[:1]}
        for name, value in values.items():
            if math.isfinite(value):
                self.points.setdefault(name, []).append((line["step"], value))

    def _repr_html_(self) -> str:
        losses = {name: points for name, points in self.points.items() if name.endswith("loss")}
        scores = {name: points for name, points in self.points.items() if name not in losses}
        drawn = "".join(self._draw(curves) for curves in (losses, scores) if curves)
        return f'<div style="display:flex;flex-wrap:wrap;gap:1em">{drawn}</div>'

    def _draw(self, curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
        """Draw curves that have one axis as a figure with a caption of their last values."""
        values = [value for points in curves.values() for _, value in points]
        low, high = min(values), max(values)
        span = high - low or 1.0

        def place(step: int, value: float) -> str:
            x = MARGIN + (WIDTH - 2 * MARGIN) * step / self.total
            return f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * (value - low) / span:.1f}"

        lines, captions = [], []
        for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
            every = -(-len(points) // MOST_POINTS)
            shown = [*points[:-1:every], points[-1]]
            drawn = " ".join(place(*point) for point in shown)
            last_x, last_y = place(*points[-1]).split(",")
            lines.append(
                f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="2"/>'
                f'<circle cx="{last_x}" cy="{last_y}" r="3" fill="{colour}"/>'
            )
            last = _shown(name, points[-1][1])
            captions.append(f'<span style="color:{colour}">{escape(name)} {last}</span>')
        name = next(iter(curves))
        scale = f"{_shown(name, low)} to {_shown(name, high)}; {self.total:,} steps"
        return (
            f'<figure style="margin:0"><svg width="{WIDTH}" height="{HEIGHT}" role="img" '
            f'aria-label="{escape(", ".join(curves))} by step">'
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" fill="none" '
            f'stroke="currentColor" stroke-opacity="0.3"/>{"".join(lines)}</svg>'
            f"<figcaption>{', '.join(captions)} <small>({scale})</small></figcaption></figure>"
        )


def _shown(name: str, value: float) -> str:
    """Write a value: a loss as a number, a score, which is a fraction of right answers, as a percentage."""
    return f"{value:.3f}" if name.endswith("loss") else f"{value:.1%}"


def find_display() -> Callable[..., Any] | None:
    """Return IPython's function `display` where the program runs as the kernel of a notebook; else None.

    IPython in a terminal has no kernel: there a job is as silent as in a script.
    """
    ipython, displays = sys.modules.get("IPython"), sys.modules.get("IPython.display")
    if ipython is None or displays is None:
        return None
    if getattr(ipython.get_ipython(), "kernel", None) is None:
        return None
    display: Callable[..., Any] = displays.display
    return display


class AutomaticListener(Listener):
    """Hears a job that was given no listener: shown in a notebook, silent in a script."""

    @property
    def relayed_to(self) -> Listener | None:  # type: ignore[override]
        """The listener of the place where the program runs, which may become a notebook after the import."""
        display = find_display()
        return None if display is None else NotebookListener(display)


AUTOMATIC = AutomaticListener()
