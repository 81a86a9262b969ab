"""The options that verbs have in common, and how a command line becomes the options of a job."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar, get_args

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

from vitkit.cli.listener import TerminalListener
from vitkit.data.layouts.vtab_tasks import TaskFolder
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import Method
from vitkit.jobs.options import StrPath, StrPaths, Tracker, leave_alone
from vitkit.jobs.vtab.options import Rates
from vitkit.listener import Listener
from vitkit.models.config.image_config import Size, height_and_width
from vitkit.signals import stop_signals

C = TypeVar("C")

AS_TEXT: dict[Any, Any] = {
    StrPath: str,
    StrPath | None: str | None,
    StrPaths: tuple[str, ...],
    Sequence[StrPath]: tuple[str, ...],
    Sequence[StrPath] | None: tuple[str, ...] | None,
}
"""Types of options that functions of Python are more generous with, and what is read of a command line."""

COMMA_SEPARATED: dict[Any, Any] = {
    tuple[int, ...]: int,
    Sequence[int]: int,
    Sequence[str]: str,
    tuple[Method, ...]: Method,
    tuple[Tracker, ...]: Tracker,
    Sequence[Method]: Method,
    Sequence[TaskFolder]: TaskFolder,
    Rates | None: float,
}
"""Types of options whose several values are one word with commas, as in `--shots 1,5,10`, and those of a
value."""

CONSTRUCTORS = ConstructorRegistry()
"""Readers for the types of options that the parser would read in another way."""


@CONSTRUCTORS.struct_rule
def _listener(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Let the terminal hear every job; there is no option for it."""
    # The parser narrows the type of the field to that of its default.
    hears = isinstance(info.type, type) and issubclass(info.type, Listener)
    return StructConstructorSpec(TerminalListener, ()) if hears else None


@CONSTRUCTORS.primitive_rule
def _places(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Take files, folders and addresses as they are written: only a program has paths."""
    text = next((text for kind, text in AS_TEXT.items() if kind == info.type), None)
    if text is None:
        return None
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(text, info.markers))
    return spec if isinstance(spec, PrimitiveConstructorSpec) else None


@CONSTRUCTORS.primitive_rule
def _optional_size(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Size | None] | None:
    """Take two numbers after an option. tyro's own rule takes every word that follows, names of files too."""
    if info.type != Size | None:
        return None
    return PrimitiveConstructorSpec(
        nargs=2,
        metavar="INT INT",
        instance_from_str=lambda words: (int(words[0]), int(words[1])),
        is_instance=lambda value: value is None or isinstance(value, int | tuple),
        str_from_instance=lambda size: [str(length) for length in height_and_width(size) or [None]],
    )


@CONSTRUCTORS.primitive_rule
def _numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[float, ...] | None] | None:
    """Take numbers with commas between them, or as several words."""
    if info.type not in (tuple[float, ...], tuple[float, ...] | None):
        return None
    return PrimitiveConstructorSpec(
        nargs="*",
        metavar="FLOAT,FLOAT,...",
        instance_from_str=lambda words: tuple(float(part) for part in ",".join(words).split(",") if part),
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda values: (
            [f"{value:g}" for value in values] if values is not None else ["None"]
        ),
    )


@CONSTRUCTORS.primitive_rule
def _comma_separated(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[tuple[Any, ...]] | None:
    """Take one word with commas for several numbers or names. tyro's own rule takes all words that follow."""
    item = next((item for kind, item in COMMA_SEPARATED.items() if kind == info.type), None)
    if item is None:
        return None
    names = get_args(item)

    def read(words: list[str]) -> tuple[Any, ...]:
        parts = [part.strip() for part in words[0].split(",") if part.strip()]
        wrong = [part for part in parts if part not in names] if names else []
        if wrong:
            raise ValueError(f"{wrong[0]} is none of {', '.join(names)}")
        return tuple(parts if names else map(item, parts))

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(names) + "}" if names else "{0},{0},...".format(item.__name__.upper()),
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, tuple),
        str_from_instance=lambda values: ["None" if values is None else ",".join(map(str, values))],
    )


def parse(command: Callable[..., Any], arguments: list[str], verb: str) -> Any:
    """Call a command with what its arguments say, and return what it returns.

    Args:
        command: a function or a dataclass, whose parameters are the options. Those without a default, in
            dataclasses within it too, are positional.
        arguments: what follows the verb. One number after --image-size stands for height and width.
        verb: named in the help.

    Raises:
        SystemExit: the arguments are wrong or ask for help, and the words are printed.
        VitkitError: --subset is given, and the command has no splits.
    """
    names = inspect.signature(command).parameters
    if "splits" not in names and any(one.partition("=")[0] == "--subset" for one in arguments):
        other = 'Name a part of a split with --split "test[:10%]".' if "split" in names else "Leave it out."
        raise VitkitError(
            "--subset takes a part of the images that a run trains on, and "
            f"vitkit {verb} trains none. {other}"
        )
    parsed = tyro.cli(
        command,
        args=spell_out(arguments),
        prog=f"vitkit {verb}",
        registry=CONSTRUCTORS,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
    )
    return leave_alone(parsed)


def parse_study(command: type[C], arguments: list[str], verb: str) -> tuple[C, list[str]]:
    """Read the options of a study, and return the others, which are options of training, beside them.

    Args:
        command: a dataclass, whose fields are the options.
        arguments, verb: as for `parse`.

    Raises:
        SystemExit: as `parse`.
    """
    parsed, others = tyro.cli(
        command,
        args=spell_out(arguments),
        prog=f"vitkit {verb}",
        registry=CONSTRUCTORS,
        return_unknown_args=True,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
    )
    return leave_alone(parsed), others


@contextmanager
def importing() -> Iterator[None]:
    """Let imports come to their end before a signal is answered: one broken off leaves half a module behind.

    A verb imports its job inside such a block once its command line is understood, so that neither its help
    nor a word about a misspelt option waits for torch.
    """
    # Named, as the first import of torch takes seconds in which nothing else is to be seen.
    waiting = nullcontext() if "torch" in sys.modules else TerminalListener().progress("importing libraries")
    with stop_signals() as stop, stop.held(), waiting:
        yield


def spell_out(arguments: list[str]) -> list[str]:
    """Write short forms of options out: --subset, and one word after --image-size.

    64 stands for both height and width, 64x96 for 64 96. A parser cannot tell a single number from a pair,
    because the name of an image or a model may follow.
    """
    arguments = [
        f"--splits.{argument[2:]}" if argument.partition("=")[0] == "--subset" else argument
        for argument in arguments
    ]
    for i, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name == "--image-size":
            given = [value] if value else arguments[i + 1 : i + 3]
            rest = arguments[i + 1 :] if value else arguments[i + 1 + len(given) :]
            sides = given[0].split("x") if given else []
            if len(sides) == 1 and (len(given) == 1 or not given[1].isdigit()):
                sides *= 2
            if len(sides) == 2 and all(side.isdigit() for side in sides):
                return [*arguments[:i], name, *sides, *given[1:], *rest]
    return arguments


def take_option(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from the arguments; returns the value."""
    for i, argument in enumerate(arguments):
        if argument == option:
            if i + 1 == len(arguments):
                raise VitkitError(f"{option} needs a value.")
            value = arguments[i + 1]
            del arguments[i : i + 2]
            return value
        if argument.startswith(option + "="):
            del arguments[i]
            return argument.split("=", 1)[1]
    return None


def read_names(sources: Sequence[str]) -> tuple[str, ...]:
    """Return the names of files and folders, those that stand on standard input in place of a "-".

    Raises:
        VitkitError: standard input is closed, or nothing is named on it.
    """
    names: list[str] = []
    for source in sources:
        names += _lines_of_input() if source == "-" else [source]
    if sources and not names:
        raise VitkitError("The list of images on standard input is empty.")
    return tuple(names)


def _lines_of_input() -> Iterator[str]:
    """Yield the lines of standard input as names of files, which need not be UTF-8."""
    if sys.stdin is None:
        raise VitkitError("Standard input is closed, so no paths can be read from it.")
    for line in getattr(sys.stdin, "buffer", sys.stdin):
        name = os.fsdecode(line).strip()
        if name:
            yield name
