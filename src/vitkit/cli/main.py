"""The command line: one verb per job. It must not import torch; each verb imports its own."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vitkit._version import __version__
from vitkit.cli import streams
from vitkit.cli.help import ASKING, VERBS
from vitkit.cli.verb_options import Option, read
from vitkit.config import nearest
from vitkit.errors import VitkitError, WrongCommandLine, in_shell
from vitkit.signals import StopRequest, stop_signals
from vitkit.text import visible
from vitkit.world import world_of_environment

OTHER_VERBS = {
    "train": ("fit",),
    "evaluate": ("val", "validate", "test", "score"),
    "predict": ("infer", "inference", "classify"),
    "embed": ("features", "embeddings", "extract"),
    "fewshot": ("probe", "knn", "linear-probe"),
    "inspect": ("attention", "rollout", "visualize", "explain"),
    "bench": ("benchmark", "profile", "speed"),
    "data check": ("check", "dedup"),
    "serve": ("server", "api", "deploy"),
    "starts": ("weights", "checkpoints", "zoo"),
}
"""The names of our verbs in other tools."""

STARTED = ("train", "finetune", "pretrain", "evaluate", "fewshot")
"""The verbs whose --processes starts processes; torchrun starts those of vtab too."""

MEMORY = (
    "the memory of this machine is not enough for it. Ask for less at a time (a smaller batch, model or "
    "image), or close other programs."
)

EXAMPLES = """\
Examples:
  vitkit train --recipe digits                       train on the built-in digits, no download
  vitkit data check my_photos/                       look at a folder of class folders before training
  vitkit finetune my_photos/ --out runs/my_photos    train on it, from weights that others trained
  vitkit train --recipe photos --data my_photos/     train on it from scratch: for many thousands of images
  vitkit predict runs/my_photos holiday.jpg          use the result
"""


def run(arguments: list[str]) -> int:
    """Run a command; return its exit code.

    0: done. 1: the user can fix it, a message says how. 2: the command line cannot be read: an unknown
    command or option, a missing argument, a value of another type. 130 and 143: stopped by Ctrl-C and
    SIGTERM; 128 and its number for every signal that asks to stop. 141: the reader of the output has gone.
    Anything else that fails is a bug and keeps its traceback.

    With --json among the arguments, a command that fails also prints an object with `error` and `exit_code`
    as the last line of standard output: not the only one, for `predict` prints a line for each image before.
    """

    try:
        with in_shell():
            code = _command(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # at the exit of Python, a full disk would be a traceback
        return code
    except BrokenPipeError:
        streams.discard(sys.stdout)
        return 141  # as a shell has it: 128 and the number of SIGPIPE
    except BaseException as error:
        with in_shell():
            explained = _explain(error)
        message, code = explained or (f"{type(error).__name__}: {error}", 1)
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
            if "--json" in arguments:
                from vitkit.cli import console

                console.print_json({"error": message, "exit_code": code}, indent=None)
        except OSError:
            streams.discard(sys.stdout)
        if explained is None:
            raise  # a bug, which keeps its traceback
        with suppress(OSError):
            if sys.stderr is not None:
                print("vitkit:", visible(message, keep="\n"), file=sys.stderr, flush=True)
        return code


def _explain(error: BaseException) -> tuple[str, int] | None:
    """Say what went wrong, with the exit code; None for a bug."""
    if isinstance(error, VitkitError):
        return str(error), error.exit_code
    if isinstance(error, StopRequest):
        what = "interrupted" if error.number == signal.SIGINT else str(error)
        return f"{what}. To go on, run the same command again.", error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, RecursionError):
        return "a file is nested too deeply for vitkit to have written it: check the file.", 1
    if isinstance(error, UnicodeError):
        return f"a text has another encoding than expected: {error}.", 1
    if isinstance(error, OSError):
        # A full disk, a folder that may not be written, a file where a folder should be.
        place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # then work was under way
        advice = "What was finished before is kept: correct" if full else "Correct"
        return f"{place}{error.strerror or error}. {advice} this, then run the same command again.", 1
    said = str(error) if isinstance(error, RuntimeError) else ""
    if isinstance(error, MemoryError) or "can't allocate memory" in said or "out of memory" in said:
        return MEMORY, 1
    return None


def _command(arguments: list[str]) -> int:
    """Run the command that the arguments begin with."""
    verb, *rest = arguments or ["help"]
    if verb == "help" and rest:
        verb, rest = rest[0], [*rest[1:], "--help"]
    if verb in ("-h", "--help", "help"):
        print(
            f"vitkit {__version__}: the Vision Transformer of 'An Image is Worth 16x16 Words'\n\n"
            "usage: vitkit COMMAND [OPTIONS]        (vitkit COMMAND --help says how)\n"
        )
        for name, (summary, _module) in VERBS.items():
            print(f"  {name:10} {summary}")
        print(f"\n{EXAMPLES}")
        return 0
    if verb in ("-V", "--version"):
        print(f"vitkit {__version__}")
        return 0
    if verb not in VERBS:
        meant = [ours for ours, others in OTHER_VERBS.items() if verb in others]
        hint = f"Here it is '{meant[0]}'." if meant else nearest(verb, VERBS)
        raise WrongCommandLine(f"No command is named '{verb}'. {hint}")
    for argument in rest:
        if "\0" in argument or (argument.startswith("-") and "\x1b" in argument):
            raise WrongCommandLine(f"the argument {argument} holds a character that no option has.")
    world = world_of_environment()
    if world.rank:  # process 0 parses the command line and prints
        return take_part(verb, rest) if verb in (*STARTED, "vtab") and not {*ASKING} & {*rest} else 0
    from vitkit.cli import console

    try:
        # Any signal that asks to stop ends a command as Ctrl-C does, so that it clears half-written files;
        # training has its own way to stop.
        with stop_signals(last=True) as stop, console.show_warnings():
            with stop.held():  # an import that is broken off may leave half a module behind
                from vitkit.cli.options import home_of

                run_verb = home_of(verb).main
            reading = read(rest, [Option("--processes", "processes", "NUMBER")])
            count = reading.given.get("processes", "1")
            if verb in STARTED and count != "1" and not {*ASKING} & {*rest}:
                start_several(verb, count, reading.rest)
            else:
                run_verb(rest)
        if world.size > 1:
            from vitkit.runs.processes import dismiss

            dismiss()
    except SystemExit as end:  # after help, which is printed, or of torchrun
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


MOST_PROCESSES = 1024
"""Processes on one machine at most; a larger number is a mistyped option."""
SHUTDOWN_SECONDS = 600
"""Seconds that processes have to finish a step and commit it, once they are asked to stop."""
OF_IMAGES = ("evaluate", "fewshot")
"""The verbs whose processes compute the same images; those of the others follow runs."""


def start_several(verb: str, count: str, arguments: list[str]) -> None:
    """Run a command by several processes on this machine, by torchrun; all but the first follow its runs.

    Args:
        verb: the command.
        count: the value of its --processes.
        arguments: its other arguments.

    Raises:
        VitkitError: --processes is no number of processes, or this is one of several already.
        SystemExit: the processes did not all end well, and have said why.
    """
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
    try:
        torchrun.run(torchrun.parse_args([*several, "-m", "vitkit", verb, *arguments]))
    except ChildFailedError as error:
        rank, failure = first_to_end(error.failures)
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            raise VitkitError(
                f"Process {rank} of {count} was ended by {name}, and the others with it. What was committed "
                "is untouched: run the same command again to continue."
            ) from None
        raise SystemExit(failure.exitcode) from None
    except SignalException as stopped:
        raise SystemExit(128 + stopped.sigval) from None
    finally:
        logging.disable(logging.NOTSET)


def first_to_end(failures: Mapping[int, Any]) -> tuple[int, Any]:
    """Choose the rank and the failure, as torchrun reports them, by which the others ended too.

    A process that loses another one may abort before torchrun looks: it is not the one.
    """
    others = {rank: end for rank, end in failures.items() if end.exitcode != -signal.SIGABRT}
    return min((others or failures).items(), key=lambda item: item[1].timestamp)


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
    finally:
        logging.disable(logging.NOTSET)
    leave_processes()
    return 0
