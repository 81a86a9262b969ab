"""Read a command line by the table of a verb's options, and tell all that is wrong with it at once."""

import difflib
import re
import shlex
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitkit.cli.verb_options import ANY_NUMBER, Option
from vitkit.errors import WrongCommandLine
from vitkit.other_names import MEANT, OTHER_NAMES
from vitkit.text import join_names

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
OTHER_SPELLING = {"--subset": "--splits.subset"}
"""Short forms of our own options."""


@dataclass
class Reading:
    """A command line, read by a table of options."""

    given: dict[str, Any] = field(default_factory=dict)
    """The values of the options that are given, by the path of their field."""
    rest: list[str] = field(default_factory=list)
    """The arguments that are none of the options or of their values, in their order."""
    wrong: list[str] = field(default_factory=list)
    """A sentence on each option that lacks its value or has a wrong one."""


def read(arguments: Sequence[str], options: Sequence[Option]) -> Reading:
    """Read the options by name among arguments; other options and words are left in the rest."""
    by_name = {name: option for option in reversed(options) for name in option.names}
    reading, waiting = Reading(), deque(arguments)  # a shell may name thousands of files
    while waiting:
        argument = waiting.popleft()
        written, equals, value = argument.partition("=")
        name = written.replace("_", "-")
        option = by_name.get(OTHER_SPELLING.get(name, name)) if written.startswith("-") else None
        if argument == "--":
            reading.rest += [argument, *waiting]
            break
        if option is None:
            reading.rest.append(argument)
            continue
        if not option.value:
            reading.given[option.path] = name == option.name
            if equals:
                said = f"{written} is a switch: give {' or '.join(option.names)}, without a value."
                reading.wrong.append(said)
            continue
        values = [value] if equals else []
        while not equals and waiting and len(values) < option.most and _is_value(waiting[0]):
            # The numbers of a list may stand behind one another; so may the values of an option with several.
            are_numbers = values and NUMBER.fullmatch(values[0]) and NUMBER.fullmatch(waiting[0])
            if values and option.is_list and not (option.number and are_numbers):
                break
            values.append(waiting.popleft())
        if not values:
            reading.wrong.append(f"{written} needs a value: {written} {option.value}.")
            continue
        try:
            parsed = _read_values(option, written, values)
        except WrongCommandLine as error:
            reading.wrong.append(str(error))
            continue
        is_repeated = option.most > 1 and not option.is_list
        reading.given[option.path] = (*reading.given.get(option.path, ()), *parsed) if is_repeated else parsed
    return reading


def parse_words(
    verb: str, reading: Reading, options: Sequence[Option], usage: Callable[[], str]
) -> dict[str, Any]:
    """Put the words that stand without an option in their places; return all values that are given.

    Args:
        verb: as it follows vitkit.
        reading: the options by name, and the rest.
        options: all options of the verb. An argument by position that is given by its name has no place.
        usage: writes the form of its command line.

    Raises:
        WrongCommandLine: there are options that are none of the verb's, wrong values, or words that are
            missing or too many. One message tells all of them.
    """
    positional: list[str] = []
    unknown: list[str] = []
    waiting = deque(reading.rest)
    while waiting:
        argument = waiting.popleft()
        if argument == "--":
            positional += waiting
            break
        if _is_value(argument):
            positional.append(argument)
            continue
        unknown.append(argument.partition("=")[0])
        if "=" not in argument and waiting and _is_value(waiting[0]):
            waiting.popleft()  # its value, probably
    given, wrong = dict(reading.given), reading.wrong
    if unknown:  # whose values may be among the words
        wrong = [*_explain_unknown(verb, unknown, options), *wrong]
    else:
        try:
            _fill(verb, positional, options, given, usage)
        except WrongCommandLine as error:
            wrong = [*wrong, str(error)]
    if wrong:
        raise WrongCommandLine(" ".join(wrong))
    return given


def _fill(
    verb: str, rest: list[str], options: Sequence[Option], given: dict[str, Any], usage: Callable[[], str]
) -> None:
    """Put words in their places.

    Raises:
        WrongCommandLine: a word is missing, is too many, or has the wrong type.
    """
    places = [option for option in options if option.is_positional and option.path not in given]
    waiting = list(rest)
    for number, place in enumerate(places):
        after = sum(other.is_required and other.most == 1 for other in places[number + 1 :])
        if place.most > 1:
            count = max(min(1, len(waiting)), len(waiting) - after)
            given[place.path], waiting = tuple(waiting[:count]), waiting[count:]
        elif place.is_required and waiting[:1] in ([], [""]):
            text = re.split(r"(?<=\.)\s+(?=[A-Z])|[.;]$", place.text, maxsplit=1)[0].rstrip(".")
            raise WrongCommandLine(f"{place.name} is missing: {text}. Usage: {usage()}")
        elif len(waiting) > (0 if place.is_required else after):
            if not place.is_required and not Path(waiting[0]).exists():
                _refuse_assignment(waiting[0])
            given[place.path] = _read_values(place, place.name, [waiting.pop(0)])
    if not waiting:
        return
    _refuse_assignment(waiting[0])
    if Path(spaced := " ".join(rest)).exists():
        raise WrongCommandLine(f"A path with blanks is put into quotes: {shlex.quote(spaced)}")
    raise WrongCommandLine(
        f"vitkit {verb} takes no further argument, found {_shown(waiting[0])}. Usage: {usage()}"
    )


def _refuse_assignment(word: str) -> None:
    """Refuse a word that looks like an option without its hyphens: "epochs=3"."""
    if assigned := re.fullmatch(r"([A-Za-z][\w.-]*)=(.*)", word):
        name = assigned[1].replace("_", "-")
        raise WrongCommandLine(f"Options are written with two hyphens: --{name} {assigned[2]}")


def _explain_unknown(verb: str, unknown: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Say that a verb has no such options, and which ones do the same, in sentences.

    Args:
        verb: as it follows vitkit.
        unknown: the options, as they were written.
        options: all options of the verb.
    """
    hints = [(written, *_meant(verb, written, options)) for written in dict.fromkeys(unknown)]
    translated = [(written, ours) for written, ours, _ in hints if ours]
    if len(translated) < 2:
        return [f"vitkit {verb} has no option {written}. {hint}" for written, _, hint in hints]
    theirs, here = (join_names(list(names)) for names in zip(*translated, strict=True))
    others = [f"It has no option {written}. {hint}" for written, ours, hint in hints if not ours]
    return [f"vitkit {verb} has no options {theirs}. Here they are {here}.", *others]


def _meant(verb: str, written: str, options: Sequence[Option]) -> tuple[str, str]:
    """Return the option that does what an unknown one does elsewhere, or "", and a sentence on it."""
    names = [name for option in options if not option.is_positional for name in option.names]
    positional = {
        f"--{label}": option.name
        for option in options
        if option.is_positional
        for label in (option.field, option.name.lower())
    }
    name = written.lstrip("-").replace("_", "-").lower()
    for ours, others in OTHER_NAMES.items():
        if name in (ours[2:], *others) and ours in names:
            return ours, f"Here it is {ours}."
        if name in (ours[2:], *others) and ours in positional:
            return "", f"{positional[ours]} is given without an option."
    if name in MEANT:
        return "", MEANT[name]
    bare = {long.removeprefix("--").rpartition(".")[2]: long for long in reversed(names)}
    near = difflib.get_close_matches(name, bare, n=1, cutoff=0.7)
    return "", f"Did you mean {bare[near[0]]}?" if near else f"vitkit {verb} --help-all lists all."


def _read_values(option: Option, written: str, values: Sequence[str]) -> Any:
    """Read the values of an option, or a word in its place.

    Raises:
        WrongCommandLine: a value is of another type, or none of the choices.
    """
    whole, is_size = ",".join(values), option.value == "SIZE"

    def read_one(text: str) -> Any:
        if option.choices:
            if text in option.choices:
                return text == "True" if option.choices == ("True", "False") else text
            near = difflib.get_close_matches(text, option.choices, n=1, cutoff=0.6)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise WrongCommandLine(
                f"{written} is one of {', '.join(option.choices)}, found {_shown(text)}.{hint}"
            )
        try:
            return text if option.number is None else option.number(text)
        except ValueError:
            kind = "a whole number" if option.number is int else "a number"
            several = " or several with commas between them" if option.is_list else ""
            several = ", or height and width such as 224,320" if is_size else several
            raise WrongCommandLine(f"{written} is {kind}{several}, found {_shown(whole)}.") from None

    if option.is_optional and whole == "None":
        return None
    if not option.is_list:
        items = tuple(map(read_one, values))
        return items if option.most > 1 else items[0]
    parts = [part.strip() for part in re.split("[x,]" if is_size else ",", whole)]
    items = tuple(read_one(part) for part in parts if part or is_size)
    if is_size and len(items) == 1:
        items *= 2  # a square
    if len(items) != option.most < ANY_NUMBER:
        raise WrongCommandLine(
            f"{written} takes {option.most} numbers, found {len(items)} in {_shown(whole)}."
        )
    return items


def _is_value(argument: str) -> bool:
    """Whether an argument is no option: a hyphen may begin a negative number, or be standard input."""
    return not argument.startswith("-") or argument == "-" or NUMBER.fullmatch(argument) is not None


def _shown(text: str) -> str:
    return shlex.quote(text if len(text) <= 80 else f"{text[:77]}...")
