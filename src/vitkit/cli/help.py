"""Write the help of a verb: a page with what matters and two examples, and one with every option."""

import re
import textwrap
from collections.abc import Sequence
from itertools import groupby

from vitkit.cli.help_pages import HelpPage
from vitkit.cli.verb_options import Option
from vitkit.jobs.functions import summary_of

WIDTH = 80
"""Columns of every page: the width of the narrowest common terminal."""
COLUMN = 24
"""The column at which texts begin; the text of a longer name begins on the next line."""
LONGEST_NAME = 44
"""Most columns of a name with its choices; where they take more, the text lists the choices."""
MOST_SHOWN = 10
"""Options on the first page of a verb whose page chooses none."""
ALL = "--help-all"
ASKING = ("-h", "--help", ALL)
"""The options that ask for help."""
RULE = (
    "Lists of numbers are written 1,5,10 or 1 5 10, lists of names a,b. A switch is turned off with "
    "--no-NAME."
)


def write_help(
    verb: str, command: object, options: Sequence[Option], page: HelpPage, *, everything: bool
) -> str:
    """Write the help of a verb in lines of at most 80 columns.

    Args:
        verb: as it follows vitkit.
        command: the function of its job, whose docstring says what the verb does.
        options: all options, those that the verb itself reads included.
        page: the choice of what the first page shows.
        everything: show every option with its whole text, in groups.
    """
    positional = [option for option in options if option.is_positional]
    named = [option for option in options if not option.is_positional]
    description = page.description or summary_of(command)
    paragraphs = "\n\n".join(map(_wrapped, re.split(r"\n\s*\n", description)))
    parts = [_wrapped(f"usage: {usage(verb, options, page)}", "  "), paragraphs]
    if positional:
        parts.append("\n".join(_entry(option, everything) for option in positional))
    if everything:
        # The options of the verb itself have no group and come first.
        ordered = sorted(named, key=lambda option: bool(option.group))
        for group, members in groupby(ordered, lambda option: option.group):
            entries = [_entry(option, True) for option in members]
            parts.append("\n".join([*([_wrapped(group)] if group else []), *entries]))
        parts.append(_wrapped(RULE))
    else:
        shown = page.options.split() or [option.name for option in named]
        if len(shown) > MOST_SHOWN and not page.options:
            shown = [name for name in shown if name not in ("--quiet", "--csv")]
            shown[MOST_SHOWN - 1 : -1] = []  # the last one is --json, where there is one
        by_name = {name: option for option in named for name in option.names}
        parts.append("\n".join(_entry(by_name[name], False) for name in shown))
    parts.append("\n".join(["Examples:", *(f"  {example}" for example in page.examples(verb))]))
    if not everything:
        parts.append(_wrapped(f"vitkit {verb} {ALL} lists all {len(named)} options."))
    return "\n\n".join(part for part in parts if part)


def usage(verb: str, options: Sequence[Option], page: HelpPage) -> str:
    """Write the form of a verb's command line: "vitkit card CHECKPOINT [OPTIONS]"."""
    parts = [
        _name(option) if option.is_required else f"[{_name(option)}]"
        for option in options
        if option.is_positional
    ]
    if len(options) > len(parts):
        parts.append("[OPTIONS]")
    return f"vitkit {verb} {page.usage or ' '.join(parts)}".rstrip()


def _wrapped(text: str, later: str = "") -> str:
    text = " ".join(text.split())
    return textwrap.fill(text, WIDTH, subsequent_indent=later, break_on_hyphens=False, break_long_words=False)


def _entry(option: Option, everything: bool) -> str:
    """Write the lines of an option: its name with its value, and its text."""
    name, text = _name(option), option.text
    if not everything:
        text = re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0].rstrip(".")
    hidden = option.choices and not all(choice in f"{name} {text}" for choice in option.choices)
    if hidden:
        text += f"{' One' if everything else '; one'} of {', '.join(option.choices)}"
    default = "on" if option.default is True else option.default_text
    if default:
        text += f" [default: {default}]"
    lines = textwrap.wrap(
        text, WIDTH - COLUMN, break_on_hyphens=False, break_long_words=len(text.split(" ", 1)[0]) > WIDTH
    )
    head, below = f"  {name}", textwrap.indent("\n".join(lines), " " * COLUMN)
    return head + below[len(head) :] if len(head) < COLUMN - 1 else f"{head}\n{below}"


def _name(option: Option) -> str:
    """Write the name of an option with the placeholder of its value."""
    if option.is_positional:
        return f"{option.name}{'...' * (option.most > 1)}"
    if not option.value:
        # A switch that is on by default is there to be turned off.
        return ", ".join(option.names) if option.default is True else option.name
    name = f"{option.name} {option.value}"
    return name if len(name) <= LONGEST_NAME else f"{option.name} NAME"
