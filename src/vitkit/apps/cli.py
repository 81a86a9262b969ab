"""The command line: one verb per job. The list of verbs must not import torch; each verb imports its own."""

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from vitkit._version import __version__
from vitkit.config import nearest
from vitkit.errors import VitkitError

# verb -> what it does, and the module whose `main(arguments)` does it
VERBS = {
    "train": ("train a model on your images, evaluate it, write a report", "vitkit.apps.train"),
    "evaluate": ("how good a model is on images it never saw", "vitkit.apps.evaluate"),
    "predict": ("name what is in images", "vitkit.apps.predict"),
    "report": ("write a run's report.html again", "vitkit.apps.write_report"),
    "inspect": ("filters, positions and attention of a model as pictures", "vitkit.apps.inspection"),
    "data": ("data check PATH: counts, sizes, bad files, duplicates", "vitkit.apps.data_check"),
    "convert": ("a checkpoint in another library's layout, compared", "vitkit.apps.convert"),
    "card": ("what a checkpoint is and how it computes", "vitkit.apps.card"),
    "cost": ("parameters, FLOPs, memory and compute of models", "vitkit.apps.cost"),
    "models": ("names, parameters and FLOPs of the models", "vitkit.apps.models"),
    "recipes": ("named training runs and what they are for", "vitkit.apps.recipes"),
}

EXAMPLES = """\
Examples:
  vitkit train --recipe digits                       train on the built-in digits, no download
  vitkit data check my_photos/                       look at a folder of class folders before training
  vitkit train --recipe photos --data my_photos/     train on it
  vitkit predict runs/my_photos-... holiday.jpg      use the result
"""


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code.

    0: done. 1: the user can mend it, one message says how. 2: the command line is wrong. 130 and 143: stopped
    by Ctrl-C and SIGTERM. Anything else that fails is a bug and keeps its traceback.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"vitkit {__version__}")
        return 0
    verb, *rest = arguments
    try:
        if verb not in VERBS:
            print(f"vitkit: no command is named '{verb}'. {nearest(verb, VERBS)}", file=sys.stderr)
            return 2
        with _terminable():
            importlib.import_module(VERBS[verb][1]).main(rest if verb == "models" else _squared(rest))
    except VitkitError as error:
        sys.stdout.flush()
        print(f"vitkit: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("vitkit: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not complain of that at exit.
        sys.stderr.close()
        return 0
    except OSError as error:
        # A full disk, a folder that may not be written, a file where a folder should be.
        sys.stdout.flush()
        place = f"{error.filename}: " if error.filename else ""
        print(
            f"vitkit: {place}{error.strerror or error}. What was finished before is kept: mend this, then "
            "run the same command again.",
            file=sys.stderr,
        )
        return 1
    return 0


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that what is half done is cleared away; training has its own
    way to stop."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _help() -> str:
    verbs = "\n".join(f"  {verb:10} {summary}" for verb, (summary, _module) in VERBS.items())
    return (
        f"vitkit {__version__}: the Vision Transformer of 'An Image is Worth 16x16 Words'\n\n"
        f"usage: vitkit COMMAND [OPTIONS]        (vitkit COMMAND --help for its options)\n\n"
        f"{verbs}\n\n{EXAMPLES}"
    )


def _squared(arguments: list[str]) -> list[str]:
    """One number after --image-size stands for both height and width."""
    for i, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--image-size":
            given = [value] if value else arguments[i + 1 : i + 3]
            rest = arguments[i + 1 :] if value else arguments[i + 1 + len(given) :]
            if given and given[0].isdigit() and (len(given) == 1 or not given[1].isdigit()):
                return [*arguments[:i], name, given[0], given[0], *given[1:], *rest]
    return arguments
