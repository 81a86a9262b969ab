"""Check that an exported model computes here what it did where it was exported, by its golden set.

Nothing here imports torch: the machine that is checked need not have it.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from vitkit.engines.check import Level
from vitkit.engines.folder import serve_folder
from vitkit.engines.golden import check_golden, read_golden
from vitkit.engines.libraries import EnginePrecision, GraphEngine
from vitkit.errors import VitkitError
from vitkit.jobs.engines import thread_count
from vitkit.jobs.options import StrPath
from vitkit.listener import AUTOMATIC, Listener
from vitkit.result import Result, Section, Table
from vitkit.runs.folder import kind_of


@dataclass(frozen=True, repr=False)
class CheckedBundle(Result):
    """The comparison of this machine with the one that exported a model."""

    path: Path
    """The folder of the model."""
    engine: GraphEngine
    """The engine that computed it here."""
    engine_version: str
    precision: EnginePrecision
    levels: tuple[Level, ...]
    """The steps of the way from an encoded image to an answer, in their order."""

    @property
    def departs_at(self) -> str | None:
        """Name the first level at which this machine differs by more than is allowed; None: at none."""
        return next((level.name for level in self.levels if not level.passed), None)

    def summary(self) -> str:
        """Say whether the model computes as when it was exported."""
        by = f"{self.path} ({self.precision} by {self.engine} {self.engine_version})"
        level = self.departs_at
        return f"{by} answers as when exported" if level is None else f"{by} departs at the level {level}"

    def sections(self) -> Sequence[Section]:
        """Return the table of the levels."""
        rows = tuple(
            (level.name, f"{level.same} of {level.count}", f"{level.difference:.2g}", f"{level.allowed:.2g}")
            for level in self.levels
        )
        table = Table(("level", "same", "largest difference", "allowed"), rows)
        return (Section("", (table, self.summary())),)

    def following(self) -> Sequence[str]:
        """Return the command that predicts by the model, where it may be relied on."""
        command = f"vitkit predict {shlex.quote(str(self.path))} IMAGE_OR_FOLDER"
        return () if self.departs_at else (command,)


def check_bundle(
    bundle: StrPath, *, engine: GraphEngine | None = None, listener: Listener = AUTOMATIC
) -> CheckedBundle:
    """Check an exported model on this machine: the golden images that it was exported with go the whole way.

    Args:
        bundle: a folder that vitkit export wrote, here or elsewhere.
        engine: the engine that computes it; left out, the one that it was exported for. OpenVINO computes a
            graph of ONNX too.
        listener: hears the progress; left out, a notebook shows it and a script is silent.

    Raises:
        VitkitError: it is no such folder or is damaged; or the engine is not installed, or cannot read it.
    """
    path = Path(bundle)
    if kind_of(path).kind != "exported model":
        raise VitkitError(
            f"{path}: expected a folder that vitkit export wrote, found no engine.json in it. Make a bundle "
            "with vitkit export MODEL OUT."
        )
    model, record = serve_folder(path, thread_count(), engine=engine)
    golden = read_golden(path)
    with listener.progress("computing the golden set"):
        levels = check_golden(model, golden)
    by = engine or record.engine
    return CheckedBundle(path, by, version(by), record.precision, levels)
