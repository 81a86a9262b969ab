"""Run a command by several processes: torchrun starts them, and all but the first follow its runs."""

import logging
import os
import signal
import sys
from typing import Any

from vitkit.cli.help import ASKING
from vitkit.cli.parser import read
from vitkit.cli.verb_options import Option
from vitkit.errors import VitkitError
from vitkit.signals import StopRequest
from vitkit.world import world_of_environment

MOST_PROCESSES = 1024
"""Processes on one machine at most; a larger number is a mistyped option."""
SHUTDOWN_SECONDS = 600
"""Seconds that processes have to finish a step and commit it, once they are asked to stop."""
OF_IMAGES = ("evaluate", "fewshot")
"""The verbs whose processes compute the same images; those of the others follow runs."""


def start_several(verb: str, arguments: list[str]) -> bool:
    """Run a command by several processes on this machine, by torchrun, if its --processes says so.

    Args:
        verb: the command.
        arguments: its arguments.

    Returns:
        Whether the command ran so; else it is still to be run, by this process alone.

    Raises:
        VitkitError: --processes is no number of processes, or this is one of several already.
        SystemExit: the processes did not all end well, and have said why.
    """
    reading = read(arguments, [Option("--processes", "processes", "NUMBER")])
    count = reading.given.get("processes", "1")
    if count == "1" or {*ASKING} & {*arguments}:
        return False
    if world_of_environment().size > 1:
        raise VitkitError("torchrun has started several processes already: leave --processes out.")
    if not count.isdecimal() or len(count) > 6 or not 1 <= int(count) <= MOST_PROCESSES:
        raise VitkitError(f"--processes is from 1 to {MOST_PROCESSES:,}, found {count[:40]}.")
    # Without it torchrun sets the same with a warning of five lines; each process then chooses its threads.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch.distributed.run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.CRITICAL)  # torchrun's pages about a process that has said itself why it ended
    torchrun: Any = torch.distributed.run
    # PyTorch 2.11 does not know the option, and waits half a minute.
    has_option = "--shutdown-timeout" in torchrun.get_args_parser().format_usage()
    several = ["--standalone", f"--nproc-per-node={int(count)}"]
    several += ["--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"]
    several += [f"--shutdown-timeout={SHUTDOWN_SECONDS}"] if has_option else []
    options = torchrun.parse_args([*several, "-m", "vitkit", verb, *reading.rest])
    try:
        torchrun.run(options)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            raise VitkitError(
                f"Process {rank} of {count} was ended by {name}, and the others with it. What was committed "
                "is untouched: run the same command again to continue."
            ) from None
        raise SystemExit(failure.exitcode) from None
    except SignalException as stopped:
        raise SystemExit(128 + stopped.sigval) from None
    return True


def take_part(verb: str, arguments: list[str]) -> int:
    """Compute a part of what process 0 computes, or take part in all its runs; return the exit code.

    Args:
        verb: the command.
        arguments: its arguments.
    """
    from vitkit.runs.processes import await_message, join_processes, leave_processes

    try:
        # Returns once process 0 has understood the arguments; a person hears for which processes it waits.
        world = join_processes(lambda sentence: print(f"vitkit: {sentence}", file=sys.stderr, flush=True))
        if verb in OF_IMAGES:
            logging.disable(logging.CRITICAL)  # process 0 prints the warnings on a checkpoint
            from vitkit.cli.options import home_of

            job = home_of(verb)
            job.call(job.parse(arguments))
            await_message(world)
        else:
            from vitkit.jobs.train_run import follow
            from vitkit.runs.machine import keep_freed_memory

            keep_freed_memory()
            while follow(world) is not None:
                pass
    except KeyboardInterrupt as stop:
        return stop.exit_code if isinstance(stop, StopRequest) else 130
    leave_processes()
    return 0
