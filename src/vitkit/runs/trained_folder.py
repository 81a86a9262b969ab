"""The folder of what was trained: a path, which a notebook shows as its report."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    PathOfSystem = Path
else:
    PathOfSystem = type(Path())  # before Python 3.12 `Path` itself cannot be extended
HEIGHT = 640
"""Pixels of the report in a notebook: its headline and its curves are seen, the rest scrolls."""


class TrainedFolder(PathOfSystem):
    """The folder of a run, of several runs or of a study; a notebook shows its report."""

    study: Any = None
    """The result of a study; None for runs, whose results are in their folder."""

    def with_segments(self, *segments: Any) -> Path:
        """Return a plain path for what is in the folder (Python 3.12 and later)."""
        return Path(*segments)

    def _repr_html_(self) -> str | None:
        """Return the report, with curves, accuracy in a sentence and mistakes; None without one."""
        report = self / "report.html"
        if not report.is_file():
            return None
        page = html.escape(report.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
