"""Run the steps of training to the last one: report, log, and stop where nothing is lost.

speed.jsonl   images/s and memory by the clock, at the steps of the metrics log; of several processes also the
              slowest, and the fraction of the time that another waits for it
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from vitkit.durable import open_to_append
from vitkit.listener import Listener
from vitkit.runs.machine import memory_used
from vitkit.runs.trained_model import RejectedFiles
from vitkit.signals import StopSignals
from vitkit.text import format_bytes, format_duration
from vitkit.training.checkpoint import step_of
from vitkit.training.trainer import Trainer
from vitkit.world import World


def fit(trainer: Trainer, rejects: RejectedFiles, stop: StopSignals, listener: Listener) -> None:
    """Train to the end.

    Args:
        trainer: of the run, at step 0 or resumed.
        rejects: the files that cannot be read, recorded at every checkpoint.
        stop: the signals that stop it; its point is updated at every checkpoint.
        listener: hears every step.

    Raises:
        StopRequest: a signal stopped it; the current step is finished and committed.
        VitkitError: as `Trainer.fit`.
    """
    batch_size, log_every, device = trainer.config.batch_size, trainer.config.log_every, trainer.device
    start, world = trainer.state.progress.step, trainer.world
    lines = dict.fromkeys(trainer.evaluators, "")  # the last result of each evaluator, as a short text
    with (
        listener.progress("training", trainer.total_steps) as progress,
        listener.run(trainer.run, start, trainer.total_steps) as hear_metrics,
        stop.held(),
        speed_log(trainer.run) if world.writes else nullcontext(lambda line: None) as log,
        ExitStack() as stack,
    ):
        if start:
            progress(start)
        else:
            stop.point = "before the first checkpoint was committed"
        seconds, steps = 0.0, 0  # since the last line of the speed log
        began, waited_before = time.monotonic(), world.activity.waited
        # Closed where an error ends the loop: a background save must end before the folder is unlocked.
        reports = stack.enter_context(closing(trainer.fit(lambda: stop.number is not None)))
        for report in reports:
            steps, seconds = steps + 1, seconds + report.seconds
            # The first step of a session is slower: it takes memory. Minutes that were asked for are shown.
            if report.step == start + 2 and not report.finished and trainer.config.minutes is None:
                left = format_duration((report.total_steps - report.step) * report.seconds)
                listener.show([("time", [f"about {left} left (measured on step {report.step})"])])
            rejects.share(world)
            for name, numbers in report.measured.items():
                lines[name] = trainer.evaluators[name].line(numbers)
            for logged in report.logged:
                hear_metrics(logged)
            shown = "".join(f"  {line}" for line in lines.values() if line)
            speed = steps * batch_size / max(seconds, 1e-9)  # never a division by zero
            memory = memory_used(device)
            pace = f"{speed:,.0f} images/s  {format_bytes(memory)}"
            progress(
                report.step,
                detail=f"loss {report.loss:.3f}  {pace}{shown}{_standing(trainer, report.step)}",
                milestone=bool(report.measured),
            )
            if report.lowered_to is not None:
                listener.warn(
                    f"Out of memory at step {report.step}: from here on {report.lowered_to} images are "
                    f"computed at a time, and gradients are summed up to the same batch of {batch_size}."
                )
            if report.checkpoint is not None:
                committed = step_of(report.checkpoint)
                stop.point = f"at step {committed} of {report.total_steps}, which is committed"
                if stop.number is not None:
                    stop.let_nothing_interrupt()
                if world.writes:
                    rejects.write()
            if report.step % log_every == 0 or report.finished:
                line = {"step": report.step, "images_per_second": round(speed, 1), "memory_bytes": memory}
                # By all processes, also where the log goes nowhere: each must give its waiting time.
                log(line | _waiting(world, began, waited_before))
                seconds, steps = 0.0, 0
                began, waited_before = time.monotonic(), world.activity.waited


def _standing(trainer: Trainer, step: int) -> str:
    """Give the best validation so far, and name the evaluators that measure after the next step, during which
    the progress does not move.

    Args:
        trainer: of the run.
        step: the steps that are made.
    """
    monitor, progress, best = trainer.monitor, trainer.state.progress, ""
    if monitor is not None and progress.best_value is not None:
        # A maximised value is a fraction of right answers, a minimised value is a loss.
        value = f"{progress.best_value:.1%}" if monitor.direction == "max" else f"{progress.best_value:.3f}"
        best = f"  best {value} at step {progress.best_step:,}"
    due = [
        name
        for name, evaluator in trainer.evaluators.items()
        if step + 1 == trainer.total_steps or (step + 1) % (evaluator.every or trainer.evaluate_every) == 0
    ]
    return best + (f"  {' and '.join(due)} next" if due and step < trainer.total_steps else "")


def _waiting(world: World, began: float, waited_before: float) -> dict[str, float]:
    """Find the slowest of several processes, and the time that others wait for it.

    Args:
        world: the processes.
        began: the start of the time that is looked at, by `time.monotonic`.
        waited_before: seconds that this process had waited for others by then.

    Returns:
        The number of the slowest process, which waits least, and the largest fraction of the time that
        another waited; nothing for a process alone.
    """
    if world.size == 1:
        return {}
    waits = world.gather(world.activity.waited - waited_before)
    fraction = max(waits) / max(time.monotonic() - began, 1e-9)
    return {"slowest_process": waits.index(min(waits)), "waiting": round(min(fraction, 1.0), 3)}


@contextmanager
def speed_log(folder: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Open the speed log of a run folder; each line gets the seconds since then."""
    started = time.monotonic()
    with open_to_append(folder / "speed.jsonl") as file:
        if file.tell():
            file.write("\n")  # the last line may have been cut short by a crash; empty lines mean nothing

        def log(line: dict[str, Any]) -> None:
            line["seconds"] = round(time.monotonic() - started, 3)
            file.write(json.dumps(line) + "\n")
            file.flush()

        yield log
