"""Write the help of a verb: a page with what matters and two examples, and one with every option."""

import inspect
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from vitkit.cli.verb_options import Option

WIDTH = 80
"""Columns of every page: what a terminal has at least."""
COLUMN = 24
"""The column at which the texts begin; of a longer name the text begins on the next line."""
LONGEST_NAME = 44
"""Columns of a name with all its choices; where they take more, the text says them."""
MOST_SHOWN = 10
"""Options on the first page of a verb that does not choose them itself."""
ALL = "--help-all"
ASKING = ("-h", "--help", ALL)
"""The options that ask for help."""
RULE = (
    "Lists of numbers are written 1,5,10 or 1 5 10, lists of names a,b. A switch is turned off with "
    "--no-NAME."
)


@dataclass(frozen=True)
class HelpPage:
    """The choice of what the first page of a verb's help shows."""

    usage: str
    """The words after the verb: "MODEL IMAGE... [OPTIONS]"; left out, those that it takes."""
    options: tuple[str, ...]
    """The options that most people need, as they are written; about ten."""
    examples: tuple[str, ...]
    """Two commands that work, each with two spaces and a # before what it is for, where that is not plain."""
    before: tuple[Option, ...] = ()
    """Words and options that the verb reads before the parser does."""
    has_defaults: bool = True
    """Whether what is left out is always the same, and not chosen by the images."""
    description: str = ""
    """The purpose of the verb; left out, the docstring of its command."""


NO_PAGE = HelpPage("", (), ())
"""The page of a verb that chooses nothing: it shows all words and the first options."""


def write_help(
    verb: str, command: object, options: Sequence[Option], page: HelpPage, *, everything: bool
) -> str:
    """Write the help of a verb, no line of which is longer than 80 columns.

    Args:
        verb: as it follows vitkit.
        command: the dataclass that its command line becomes, whose docstring says what the verb does.
        options: all of them, those of the page and those that `describe` gives.
        page: what its first page shows.
        everything: show every option with its whole text, in groups.
    """
    if not page.has_defaults:
        options = [replace(option, default=None) for option in options]
    positional = [option for option in options if option.is_positional]
    named = [option for option in options if not option.is_positional]
    description = page.description or inspect.getdoc(command) or ""
    parts = [_wrapped(f"usage: {usage(verb, options, page)}", "  "), _paragraphs(description)]
    if positional:
        parts.append("\n".join(_entry(option, everything) for option in positional))
    if everything:
        for group, members in groupby(sorted(named, key=lambda one: bool(one.group)), lambda one: one.group):
            entries = [_entry(option, True) for option in members]
            parts.append("\n".join([*([_wrapped(group)] if group else []), *entries]))
        parts.append(_wrapped(RULE))
    else:
        shown = page.options or tuple(option.name for option in named[:MOST_SHOWN])
        by_name = {name: option for option in named for name in option.names}
        parts.append("\n".join(_entry(by_name[name], False) for name in shown))
    if page.examples:
        parts.append("\n".join(["Examples:", *(f"  {example}" for example in page.examples)]))
    if not everything:
        parts.append(_wrapped(f"vitkit {verb} {ALL} lists all {len(named)} options."))
    return "\n\n".join(part for part in parts if part)


def usage(verb: str, options: Sequence[Option], page: HelpPage) -> str:
    """Write what a command line of a verb looks like."""
    words = [f"{one.name}{'...' * (one.most > 1)}" for one in options if one.is_positional]
    return f"vitkit {verb} {page.usage or ' '.join([*words, '[OPTIONS]'])}"


def _paragraphs(text: str) -> str:
    return "\n\n".join(_wrapped(paragraph) for paragraph in re.split(r"\n\s*\n", text))


def _wrapped(text: str, later: str = "") -> str:
    words = " ".join(text.split())
    return textwrap.fill(
        words, WIDTH, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    )


def _entry(option: Option, everything: bool) -> str:
    """Write the lines of an option: its name with what follows it, and why one gives it."""
    name, text = _name(option), option.text
    if not everything:
        text = re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0].rstrip(".")
    hidden = option.choices and not all(choice in f"{name} {text}" for choice in option.choices)
    if hidden:
        text += f"{' One' if everything else '; one'} of {', '.join(option.choices)}"
    default = "on" if option.default is True else option.default_text
    if default:
        text += f" [default: {default}]"
    indent = " " * COLUMN
    lines = textwrap.wrap(
        text, WIDTH - COLUMN, break_on_hyphens=False, break_long_words=len(text.split(" ", 1)[0]) > WIDTH
    )
    head = f"  {name}"
    if len(head) < COLUMN - 1 and lines:
        return "\n".join([f"{head:{COLUMN}}{lines[0]}", *(indent + line for line in lines[1:])])
    return "\n".join([head, *(indent + line for line in lines)])


def _name(option: Option) -> str:
    """Write the name of an option with what stands for its value."""
    if option.is_positional:
        return f"{option.name}{'...' * (option.most > 1)}"
    if option.is_switch:
        # What is on already is turned off; the text says what it is that is on.
        return ", ".join(option.names) if option.default is True else option.name
    name = f"{option.name} {option.value}"
    return name if len(name) <= LONGEST_NAME else f"{option.name} NAME"
