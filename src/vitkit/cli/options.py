"""The options that verbs have in common, and how a command line becomes the options of a job."""

import io
import itertools
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin

import tyro
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructTypeInfo,
)

from vitkit.cli.console import TerminalListener
from vitkit.cli.help import ALL, ASKING, usage, write_help
from vitkit.cli.help_pages import NO_PAGE, PAGES, HelpPage
from vitkit.cli.mistakes import WrongCommandLine, find_mistake
from vitkit.cli.verb_options import ANY_NUMBER, NUMBER, Option, describe, value_type
from vitkit.errors import VitkitError
from vitkit.jobs.functions import hush
from vitkit.jobs.options import StrPath, StrPaths
from vitkit.listener import Listener
from vitkit.signals import stop_signals

C = TypeVar("C")


@dataclass(frozen=True, kw_only=True)
class JsonOption:
    """The option of a verb whose result programs can read."""

    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


AS_TEXT: dict[Any, Any] = {
    StrPath: str,
    StrPath | None: str | None,
    StrPaths: tuple[str, ...],
    Sequence[StrPath]: tuple[str, ...],
    Sequence[StrPath] | None: tuple[str, ...] | None,
}
"""Types of options in Python, and the types that a command line gives."""

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
def _list(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Take several numbers or names as one argument with commas: `--shots 1,5,10`; a size also as 64x96.

    tyro's own rule takes all arguments that follow, names of files too.
    """
    item, most = value_type(info.type)
    # Files are several arguments, and so are names that stand without an option: tuple[str, ...].
    names = get_args(item) if get_origin(item) is Literal else ()
    of_text = item is str and get_origin(info.type) is Sequence
    if most == 1 or not (item in (int, float) or names or of_text):
        return None
    optional, is_size = type(None) in get_args(info.type), item is int and most == 2

    def read(arguments: list[str]) -> tuple[Any, ...] | None:
        (argument,) = arguments
        if optional and argument == "None":
            return None
        parts = [part.strip() for part in re.split("[x,]" if is_size else ",", argument)]
        parts = parts if is_size else [part for part in parts if part]
        wrong = [part for part in parts if part not in names] if names else []
        if wrong:
            raise ValueError(f"{wrong[0]} is none of {', '.join(names)}")
        values = tuple(parts if names else map(item, parts))
        if is_size and len(values) == 1:
            values *= 2  # a square
        if len(values) != most < ANY_NUMBER:
            raise ValueError(f"expected {most} numbers with commas between them, found {argument}")
        return values

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="VALUE,...",
        instance_from_str=read,
        is_instance=lambda value: value is None or isinstance(value, tuple | int),
        str_from_instance=lambda values: ["None" if values is None else ",".join(map(str, values))],
    )


def parse(
    command: type[C],
    arguments: list[str],
    verb: str,
    page: HelpPage | None = None,
    default: C | None = None,
) -> C:
    """Parse the arguments of a verb into the dataclass of its options.

    Args:
        command: the dataclass. Fields without a default, in dataclasses within it too, are positional.
        arguments: what follows the verb.
        verb: the name in the help.
        page: the choice of what its help shows first; left out, the verb's in `vitkit.cli.help_pages`.
        default: the values of options that are left out; by default the defaults of the dataclass.

    Raises:
        SystemExit: the arguments ask for help, which is printed.
        WrongCommandLine: they cannot be read.
        VitkitError: --subset is given, and the command has no splits; or the dataclass refuses the values.
    """
    options, _ = _parse(command, arguments, verb, page, default)
    return options


def parse_study(
    command: type[C],
    arguments: list[str],
    verb: str,
    of_training: Callable[[], Sequence[Option]],
    question: str = "",
) -> tuple[C, list[str]]:
    """Parse the options of a study, and return beside them the arguments that are options of training.

    Args:
        command, arguments, verb: as for `parse`.
        of_training: describes the options of training.
        question: the message where an option stands first, in place of the argument that belongs there.

    Raises:
        SystemExit, WrongCommandLine: as `parse`.
        VitkitError: the first argument is an option.
    """
    if question and arguments and arguments[0].startswith("-") and arguments[0] not in ASKING:
        raise VitkitError(question)
    return _parse(command, arguments, verb, None, None, of_training)


def _parse(
    command: type[C],
    arguments: list[str],
    verb: str,
    page: HelpPage | None,
    default: C | None,
    others: Callable[[], Sequence[Option]] | None = None,
) -> tuple[C, list[str]]:
    """Parse the arguments of a verb; where it has `others`, return the arguments for these too."""
    page = page or PAGES.get(verb, NO_PAGE)

    def options() -> tuple[Option, ...]:
        own = describe(command) if default is None else describe(command, default)
        return (*page.before, *own)

    if any(argument in ASKING for argument in arguments):
        print(write_help(verb, command, options(), page, everything=ALL in arguments))
        raise SystemExit(0)
    names = {field.name for field in fields(cast("Any", command))}
    trains = "splits" in names or default is not None or others is not None
    if not trains and "--subset" in option_names(arguments):
        other = 'Name a part of a split with --split "test[:10%]".' if "split" in names else "Leave it out."
        raise VitkitError(
            "--subset takes a part of the images that a run trains on, and "
            f"vitkit {verb} trains none. {other}"
        )

    def every_option() -> tuple[Option, ...]:
        # The verb has turned the arguments that stand first into options by now.
        own = [option for option in options() if not (option in page.before and option.is_positional)]
        return (*own, *(others() if others is not None else ()))

    arguments = spell_out(arguments, every_option)
    printed = io.StringIO()
    try:
        with redirect_stderr(printed):
            parsed: Any = cast("Any", tyro.cli)(
                command,
                args=arguments,
                prog=f"vitkit {verb}",
                registry=CONSTRUCTORS,
                return_unknown_args=others is not None,
                config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
                **({} if default is None else {"default": default}),
            )
    except SystemExit:
        mistake = find_mistake(verb, arguments, every_option(), usage(verb, options(), page))
        raise WrongCommandLine(mistake or _message_of_box(printed.getvalue())) from None
    except VitkitError as error:
        raise _in_options(error, every_option(), arguments) from None
    if others is None:
        return hush(parsed), []
    parsed, left = parsed
    named = [option for option in every_option() if not option.is_positional]
    mistake = find_mistake(verb, left, named, usage(verb, options(), page))
    if mistake:
        raise WrongCommandLine(mistake)
    return hush(parsed), left


def _message_of_box(text: str) -> str:
    """Return what the parser says is wrong: the text of its box before the last lines, on the help."""
    parts: list[list[str]] = [[]]
    for line in (line.strip(" │|") for line in text.splitlines()):
        if line.startswith(("╭", "╰", "+")) or re.fullmatch("-+|─+", line):
            # Where it draws no boxes, the title stands above the first line of hyphens.
            is_title = line.startswith("-") and "╭" not in text and len(parts) == 1
            parts = [[]] if is_title else [*parts, []]
        elif line:
            parts[-1].append(line)
    sentences = [" ".join(part) for part in parts if part]
    ends = ("For full help", "Argument helptext")
    return "; ".join(itertools.takewhile(lambda sentence: not sentence.startswith(ends), sentences))


def _in_options(error: VitkitError, options: Sequence[Option], arguments: Sequence[str]) -> VitkitError:
    """Replace the names of fields in a message by the names of their options."""
    given = option_names(arguments)
    # --seed and --splits.seed are options of fields of one name: the message is on the option that was given.
    ordered = sorted(options, key=lambda option: option.name in given)
    names = {option.field: option.name for option in ordered if not option.is_positional}
    message = re.sub(
        # A name with an underscore anywhere, and any name that begins the sentence.
        r"^[a-z]\w*(?=:| (?:is|are|has|must|and)\b)|(?<![\w.-])[a-z0-9]+(?:_[a-z0-9]+)+\b",
        lambda match: names.get(match[0], match[0]),
        str(error),
    )
    return VitkitError(message)


@contextmanager
def importing() -> Iterator[None]:
    """Finish imports before a signal is answered: an import that is broken off leaves half a module behind.

    A verb imports its job inside such a block once its command line is understood, so that neither its help
    nor the message on a misspelt option waits for torch.
    """
    # The first import of torch takes seconds in which nothing else is to be seen.
    waiting = nullcontext() if "torch" in sys.modules else TerminalListener().progress("importing libraries")
    with stop_signals() as stop, stop.held(), waiting:
        yield


def spell_out(arguments: list[str], options: Callable[[], Sequence[Option]]) -> list[str]:
    """Write short forms of options out: --subset, and a list of numbers that are several arguments.

    A list of numbers, or a size, is one argument with commas for the parser. A person may separate its
    numbers by blanks too: an option takes as many of the numbers behind it as its list may have.

    Args:
        arguments: as a person wrote them.
        options: describes all options of the verb; called only where a number follows a number.
    """
    arguments = [
        f"--splits.{argument[2:]}" if argument.partition("=")[0] == "--subset" else argument
        for argument in arguments
    ]
    is_number = [NUMBER.fullmatch(argument) is not None for argument in arguments]
    if not any(
        name.startswith("--") and first and second
        for name, first, second in zip(arguments, is_number[1:], is_number[2:], strict=False)
    ):
        return arguments
    lists = {option.name: option.most for option in options() if option.is_list and option.number is not None}
    written: list[str] = []
    waiting = deque(arguments)  # a shell may name thousands of files
    while waiting:
        name = waiting.popleft()
        most = lists.get(name.replace("_", "-"), 0)
        numbers: list[str] = []
        while len(numbers) < most and waiting and NUMBER.fullmatch(waiting[0]):
            numbers.append(waiting.popleft())
        written += [name, ",".join(numbers)] if numbers else [name]
    return written


def option_names(arguments: Sequence[str]) -> frozenset[str]:
    """Return the names of the options among arguments, written with hyphens."""
    names = (argument.partition("=")[0] for argument in arguments if argument.startswith("--"))
    return frozenset(name.replace("_", "-") for name in names)


def take_option(arguments: list[str], option: str) -> str | None:
    """Remove an option and its value from the arguments; return the value, None where it is not given."""
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
    """Return the names of files and folders; a "-" stands for the names on standard input.

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
