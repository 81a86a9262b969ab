"""The options of `vitkit.train`, `vitkit.finetune` and `vitkit.pretrain` that are no options of the run.

They need no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vitkit.config import IN_PYTHON_ALONE
from vitkit.errors import VitkitError
from vitkit.jobs.trackers import Tracker, log_to
from vitkit.listener import Listener, hushed
from vitkit.notebook import AUTOMATIC
from vitkit.runs.folder import require_folder
from vitkit.runs.run_options import RunOptions
from vitkit.runs.series_options import SeriesOptions

RESUMED = (
    "--resume continues a run with its own options, in the run's own folder: leave --recipe and --out out."
)
"""The error of a run to resume with another recipe or another folder."""


@dataclass(frozen=True, kw_only=True)
class Job(SeriesOptions):
    """The way in which a run is trained."""

    out: str | Path | None = None
    """run folder to write; left out, runs/DATA-MODEL. The same command again continues there."""
    device: str = "auto"
    """where to compute: auto (a GPU if there is one), cpu, gpu or cuda:1."""
    threads: int | None = None
    """CPU threads; left out, as many as PyTorch chooses. The same number gives the same bits."""
    from_scratch: bool = False
    """begin again at step 0 where every checkpoint of the run is damaged; they are kept."""
    log: Sequence[Tracker] = ()
    """write the numbers of the run into these logs too, with commas between them: tensorboard, wandb
    and trackio, which are extras of the same names."""
    quiet: bool = False
    """print nothing but warnings."""
    dry_run: bool = False
    """show data, splits, start, model, length, time, memory and folder, train nothing and write nothing."""
    command: str = field(default="", metadata=IN_PYTHON_ALONE)
    """the command line, which the run folder records."""
    listener: Listener = field(default=AUTOMATIC, repr=False, compare=False)
    """hears the progress; left out, a notebook shows it, and a script is silent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None:
            require_folder(Path(self.out))
        if self.is_series and self.from_scratch:
            raise VitkitError(
                "--from-scratch is for a single run: give it with --resume and that run folder."
            )
        if self.is_series and self.dry_run:
            raise VitkitError(
                "--dry-run shows a single run, found options for several: leave --runs, --sweep and "
                "--cross-validate out. The runs of a series differ from it in seed, rate or fold."
            )
        heard = log_to(*self.log, listener=hushed(self.listener, self.quiet))
        object.__setattr__(self, "listener", heard)

    @property
    def folder(self) -> Path | None:
        """Return the folder to write, if it is given."""
        return None if self.out is None else Path(self.out)

    @property
    def series(self) -> SeriesOptions:
        """Return the options of several runs."""
        return SeriesOptions(**{part.name: getattr(self, part.name) for part in fields(SeriesOptions)})


class TrainingOptions(RunOptions, total=False):
    """The options of a run, and of a `Job`, by their names in Python."""

    sweep: bool
    sweep_rates: tuple[float, ...]
    runs: int
    redraw: bool
    cross_validate: int | None
    sweep_data: str
    device: str
    threads: int | None
    from_scratch: bool
    log: Sequence[Tracker]
    quiet: bool
    dry_run: bool
    command: str
    listener: Listener


def split_options(given: Mapping[str, Any], **explicit: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job of the options that are given, and the others.

    Args:
        given: options of a job and of a run, as `TrainingOptions`.
        explicit: further fields of the job.

    Raises:
        VitkitError: the options of the job contradict one another.
    """
    names = {part.name for part in fields(Job)}
    job = Job(**{name: value for name, value in given.items() if name in names}, **explicit)
    return job, {name: value for name, value in given.items() if name not in names}
