"""Write the numbers of runs into other programs' logs too: TensorBoard, Weights & Biases.

RUN/tensorboard/   event files: tensorboard --logdir RUN/tensorboard
RUN/wandb/         the files of Weights & Biases; without a network: wandb sync RUN/wandb/offline-*
RUN/wandb.json     the name of the run there, and the last step whose numbers were sent

`metrics.jsonl` stays the record of a run, and these logs follow from it: steps that a killed run makes again
give the same numbers, and stand in each log once.
"""

import importlib.util
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from vitkit import config
from vitkit.errors import VitkitError
from vitkit.listener import Listener, Measured, RelayingListener
from vitkit.notebook import AUTOMATIC
from vitkit.runs.config import read_config
from vitkit.runs.folder import SERIES
from vitkit.runs.records import read_metrics
from vitkit.text import first_line, without_places

Tracker = Literal["tensorboard", "wandb"]
"""The logs of other programs that a run can write its numbers into: the names of the packages that they need,
and of the extras that install these."""
EVENTS, WANDB = "tensorboard", "wandb.json"
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
        trackers: "tensorboard" or "wandb", whose packages are extras of vitkit.
        listener: hears everything as before; left out, a notebook shows it and a script is silent.

    Raises:
        VitkitError: the package of a tracker is not installed, or no tracker has that name.
    """
    for name in trackers:
        if name not in get_args(Tracker):
            raise VitkitError(
                f"No tracker is named {name!r}: choose tensorboard or wandb. pandas reads the run's own log "
                "by pandas.read_json('RUN/metrics.jsonl', lines=True)."
            )
        if importlib.util.find_spec(name) is None:
            raise VitkitError(
                f"To log to {name}, its package is needed, which is not installed: pip install "
                f"'vitkit[{name}]'."
            )
    if isinstance(listener, TrackingListener):  # a log that two write has every line twice
        return TrackingListener((*listener.trackers, *trackers), listener.listener)
    return TrackingListener(trackers, listener)


class TrackingListener(RelayingListener):
    """A listener that relays everything to another one, and the numbers of runs to trackers.

    Args:
        trackers: their names; event files of TensorBoard that are in a run folder already are continued
            without being named.
        listener: the other listener.
    """

    def __init__(self, trackers: Sequence[Tracker], listener: Listener) -> None:
        super().__init__(listener)
        self.trackers = tuple(trackers)

    @contextmanager
    def run(self, folder: Path, step: int, total: int) -> Iterator[Measured]:
        with ExitStack() as stack:
            relay = stack.enter_context(self.listener.run(folder, step, total))
            before: dict[int, Metrics] = {}  # a damaged line is left out
            log = read_metrics(folder)
            for line in sorted([*log.lines, *log.evaluated], key=lambda line: line["step"]):
                usable = line["kind"] != "evaluation" or isinstance(line.get("evaluator"), str)
                if line["step"] <= step and "epoch" in line and usable:
                    before[line["step"]] = {**before.get(line["step"], {}), **_numbers(line)}
            logs = []
            # Weights & Biases is continued only by name: a run that was given away must send nothing unasked.
            if "wandb" in self.trackers:
                logs.append(stack.enter_context(send_to_wandb(folder, before, self.listener)))
            if "tensorboard" in self.trackers or (folder / EVENTS).is_dir():
                if importlib.util.find_spec("tensorboard") is not None:
                    logs.append(stack.enter_context(write_events(folder / EVENTS, before)))
                else:
                    warning = "The log of TensorBoard is not continued: its package is not installed."
                    self.listener.warn(warning)

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
class WandbRecord:
    """The contents of `wandb.json`."""

    id: str
    """The name of the run at Weights & Biases."""
    step: int = 0
    """The last step whose numbers were sent."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9]{8}", self.id):
            raise VitkitError(f"id: expected eight small letters and digits, found {self.id!r}.")


@contextmanager
def send_to_wandb(folder: Path, before: Mapping[int, Metrics], listener: Listener) -> Iterator[Write]:
    """Send numbers to Weights & Biases; without a network or an account they wait in the run folder.

    The environment variable WANDB_PROJECT names the project, else it is "vitkit"; WANDB_MODE and the other
    variables work as usual. Paths in the configuration are sent without their folders.

    Args:
        folder: the run folder.
        before: the numbers of earlier steps, of which the unsent ones are sent.
        listener: is warned where nothing can be sent.

    Raises:
        VitkitError: `wandb.json` is damaged.
    """
    import wandb

    path = folder / WANDB
    record = config.read(WandbRecord, path) or WandbRecord(secrets.token_hex(4))
    config.write(path, record)
    options: dict[str, Any] = {
        "project": os.environ.get("WANDB_PROJECT") or "vitkit",
        # The folder of a run of a series is seed-0 or the like, which names no run.
        "name": f"{folder.parent.name}/{folder.name}" if (folder.parent / SERIES).exists() else folder.name,
        "id": record.id,
        "resume": "allow",
        "dir": str(folder),
        "config": without_places(read_config(folder)["run"]),
        # The output of the terminal stays here.
        "settings": wandb.Settings(console="off", init_timeout=INIT_SECONDS),
    }
    try:
        run = wandb.init(**options)
    except Exception as error:  # no network or no account: the package raises many kinds
        listener.warn(
            f"Weights & Biases cannot be reached ({first_line(error)}): the numbers wait in "
            f"{folder / 'wandb'}. Send them later with: wandb sync {folder / 'wandb' / 'offline-*'}"
        )
        run = wandb.init(**options, mode="offline")

    fails = False

    def attempt(call: Callable[[], object]) -> None:
        """Call the package, whose failures must not end a run."""
        nonlocal fails
        try:
            call()
        except Exception as error:  # the package raises many kinds, BrokenPipeError among them
            if not fails:
                listener.warn(
                    f"Weights & Biases takes no more numbers ({first_line(error)}): the run goes on without "
                    "it. All numbers are in metrics.jsonl."
                )
            fails = True

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
        attempt(lambda: run.finish(exit_code=code))
