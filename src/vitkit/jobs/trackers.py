"""Write the numbers of runs into other programs' logs too: TensorBoard, Weights & Biases, trackio.

RUN/tensorboard/   event files: tensorboard --logdir RUN/tensorboard
RUN/wandb/         the files of Weights & Biases; without a network: wandb sync RUN/wandb/offline-*
RUN/wandb.json     the name of the run there, and the last step whose numbers were sent
RUN/trackio.json   the same of trackio, whose files lie in the user's folder: trackio show --project vitkit

`metrics.jsonl` stays the record of a run, and these logs follow from it: steps that a killed run makes again
give the same numbers, and stand in each log once.
"""

import importlib
import importlib.util
import io
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from vitkit import config
from vitkit.errors import VitkitError
from vitkit.listener import AUTOMATIC, Listener, Measured
from vitkit.runs.config import read_config
from vitkit.runs.folder import SERIES
from vitkit.runs.records import read_log
from vitkit.text import first_line, without_places

Tracker = Literal["tensorboard", "wandb", "trackio"]
"""The logs of other programs that a run can write its numbers into: the names of the packages that they need,
and of the extras that install these."""
EVENTS = "tensorboard"
INIT_SECONDS = 30
"""Seconds to wait for Weights & Biases to answer before the run goes on without a network."""

Metrics = Mapping[str, float]
"""The numbers of a step, by names such as "train/loss" and "validation/accuracy"."""
Write = Callable[[int, Metrics], None]
"""A function that writes the numbers of a step into a log."""


def log_to(*trackers: Tracker, listener: Listener = AUTOMATIC) -> Listener:
    """Make a listener that writes the numbers of runs into the logs of other programs too.

    >>> vitkit.train(run, "runs/ants", listener=vitkit.log_to("tensorboard", "wandb"))

    Args:
        trackers: "tensorboard", "wandb" or "trackio", whose packages are extras of vitkit.
        listener: hears everything as before; left out, a notebook shows it and a script is silent.

    Raises:
        VitkitError: the package of a tracker is not installed, or no tracker has that name.
    """
    for name in trackers:
        if name not in get_args(Tracker):
            raise VitkitError(
                f"No tracker is named {name!r}: choose tensorboard, wandb or trackio. pandas reads the "
                "run's own log by pandas.read_json('RUN/metrics.jsonl', lines=True)."
            )
        if importlib.util.find_spec(name) is None:
            raise VitkitError(
                f"To log to {name}, its package is needed, which is not installed: pip install "
                f"'vitkit[{name}]'."
            )
    if isinstance(listener, TrackingListener):  # a log that two write has every line twice
        return TrackingListener((*listener.trackers, *trackers), listener.relayed_to)
    return TrackingListener(trackers, listener) if trackers else listener


class TrackingListener(Listener):
    """A listener that relays everything to another one, and the numbers of runs to trackers.

    Args:
        trackers: their names; event files of TensorBoard that are in a run folder already are continued
            without being named.
        listener: the other listener.
    """

    def __init__(self, trackers: Sequence[Tracker], listener: Listener | None) -> None:
        self.relayed_to, self.trackers = listener, tuple(trackers)

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        with ExitStack() as stack:
            relay = stack.enter_context(super().run(folder, step, total))
            before: dict[int, Metrics] = {}  # a damaged line is left out
            log = read_log(folder / "metrics.jsonl")
            for line in sorted([*log.lines, *log.evaluated], key=lambda line: line["step"]):
                usable = line["kind"] != "evaluation" or isinstance(line.get("evaluator"), str)
                if line["step"] <= step and "epoch" in line and usable:
                    before[line["step"]] = {**before.get(line["step"], {}), **_numbers(line)}
            # These are continued only by name: a run that was given away must send nothing unasked.
            named = [tracker for tracker in ("wandb", "trackio") if tracker in self.trackers]
            logs = [stack.enter_context(send_to(name, folder, before, self)) for name in named]
            if "tensorboard" in self.trackers or (folder / EVENTS).is_dir():
                if importlib.util.find_spec("tensorboard") is not None:
                    logs.append(stack.enter_context(write_events(folder / EVENTS, before)))
                else:
                    warning = "The log of TensorBoard is not continued: its package is not installed."
                    self.warn(warning)

            last = -1

            def measured(line: Mapping[str, Any]) -> None:
                nonlocal last
                relay(line)
                numbers = _numbers(line)
                if last == line["step"]:  # the epoch of a step stands in each of its lines
                    del numbers["epoch"]
                last = line["step"]
                for write in logs:
                    write(last, numbers)

            yield measured


def _numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Name the numbers of a line of metrics.jsonl by the phase or the evaluator that measured them."""
    source = line["evaluator"] if line["kind"] == "evaluation" else line["kind"]
    numbers = {
        f"{source}/{name}": float(value)
        for name, value in line.items()
        if name not in ("step", "epoch") and isinstance(value, int | float)
    }
    return {"epoch": float(line["epoch"]), **numbers}


@contextmanager
def write_events(folder: Path, before: Mapping[int, Metrics]) -> Iterator[Write]:
    """Write event files of TensorBoard.

    Args:
        folder: the folder of the event files.
        before: the numbers of earlier steps. Where there are event files already, only the last of these
            steps is written again: the run may have been killed before it was written.
    """
    from torch.utils.tensorboard import SummaryWriter

    new = not any(folder.glob("events.out.tfevents.*"))
    last = max(before, default=0)
    # From this step on, TensorBoard ignores earlier files.
    writer: Any = SummaryWriter(str(folder), purge_step=0 if new else last)

    def write(step: int, numbers: Metrics) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a kill would lose numbers in memory

    for step, numbers in before.items():
        if new or step == last:
            write(step, numbers)
    try:
        yield write
    finally:
        writer.close()


@dataclass(frozen=True)
class SentRecord:
    """The contents of `wandb.json` and `trackio.json`."""

    id: str
    """The name of the run at Weights & Biases, the end of its name in trackio."""
    step: int = 0
    """The last step whose numbers were sent."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9]{8}", self.id):
            raise VitkitError(f"id: expected eight small letters and digits, found {self.id!r}.")


@contextmanager
def send_to(tracker: str, folder: Path, before: Mapping[int, Metrics], listener: Listener) -> Iterator[Write]:
    """Send numbers to Weights & Biases, or write them into the user's folder of trackio.

    Without a network or an account the numbers for Weights & Biases wait in the run folder. The variable
    WANDB_PROJECT or TRACKIO_PROJECT names the project, else it is "vitkit"; WANDB_MODE and other variables of
    the packages work as usual. Paths in the configuration are sent without their folders.

    Args:
        tracker: the name of the package.
        folder: the run folder.
        before: the numbers of earlier steps, of which the unsent ones are sent.
        listener: is warned where nothing can be sent.

    Raises:
        VitkitError: `wandb.json` or `trackio.json` is damaged.
    """
    package: Any = importlib.import_module(tracker)
    path = folder / f"{tracker}.json"
    record = config.read(SentRecord, path) or SentRecord(secrets.token_hex(4))
    config.write(path, record)
    # The folder of a run of a series is seed-0 or the like, which names no run.
    name = f"{folder.parent.name}/{folder.name}" if (folder.parent / SERIES).exists() else folder.name
    options: dict[str, Any] = {
        "project": os.environ.get(f"{tracker.upper()}_PROJECT") or "vitkit",
        "name": name,
        "resume": "allow",
        "config": without_places(read_config(folder)["run"]),
    }
    run: Any = None
    fails = False

    def begin() -> None:
        nonlocal run
        run = package.init(**options)

    def attempt(call: Callable[[], object]) -> None:
        """Call the package, whose failures must not end a run."""
        nonlocal fails
        try:
            with redirect_stdout(io.StringIO()):  # trackio prints
                call()
        except Exception as error:  # the packages raise many kinds, BrokenPipeError among them
            if not fails:
                program = "Weights & Biases" if tracker == "wandb" else tracker
                listener.warn(
                    f"{program} takes no more numbers ({first_line(error)}): the run goes on without it. All "
                    "numbers are in metrics.jsonl."
                )
            fails = True

    if tracker == "wandb":
        # The output of the terminal stays here.
        settings = package.Settings(console="off", init_timeout=INIT_SECONDS)
        options |= {"id": record.id, "dir": str(folder), "settings": settings}
        try:
            begin()
        except Exception as error:  # no network or no account: the package raises many kinds
            listener.warn(
                f"Weights & Biases cannot be reached ({first_line(error)}): the numbers wait in "
                f"{folder / 'wandb'}. Send them later with: wandb sync {folder / 'wandb' / 'offline-*'}"
            )
            options["mode"] = "offline"
            begin()
    else:  # it knows a run by its name; it opens no page and measures no machine
        options["name"] += f"-{record.id}"
        options |= {"embed": False, "auto_log_cpu": False, "auto_log_gpu": False}
        attempt(begin)

    def write(step: int, numbers: Metrics) -> None:
        if step <= record.step:
            return  # repeated after a kill, with numbers that were sent
        if not fails:
            # Written before sending: in a kill it is better to lose a step than to have it twice.
            config.write(path, replace(record, step=step))
            attempt(lambda: run.log(dict(numbers), step=step))

    for step, numbers in before.items():
        write(step, numbers)
    code = 1
    try:
        yield write
        code = 0
    finally:
        attempt((lambda: run.finish(exit_code=code)) if tracker == "wandb" else package.finish)
