"""`vitkit advise`: what to expect of images and starts, before anyone waits for a run."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.text import Text

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON, describe
from vitkit.text import format_bytes, format_duration

if TYPE_CHECKING:
    from vitkit.jobs.advice.advise import Advice
    from vitkit.jobs.advice.advise import Option as Way


@dataclass(kw_only=True)
class Going:
    """The option of following the advice."""

    go: bool = False
    """train as advised, and compare the expectation with the result."""


FOLLOW = Verb("advise", "vitkit.jobs.advice.advise", "follow")
OF_GO = (*describe(Going), *FOLLOW.only("out"))
VERB = Verb("advise", "vitkit.jobs.advice.advise", "advise", *OF_GO, JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, give advice, and follow it with --go."""
    given = VERB.parse(arguments)
    data, starts = given["data"], given.get("starts", ())
    advice = VERB.call(given)
    console.print_result(advice, bool(given.get("json")), _print)
    if given.get("go"):
        line = shlex.join(["vitkit", "advise", *arguments])
        folder = FOLLOW.call(given, advice, command=line)
        console.print_next(f"open {folder / 'report.html'} in a browser")
    elif not given.get("json"):
        if advice.can_go:
            following = f"{shlex.join(['vitkit', 'advise', data, *starts])} --go   (trains so)"
        elif advice.default:
            following = f"vitkit finetune {shlex.quote(data)}   (from {advice.default})"
        else:
            following = f"vitkit advise {shlex.quote(data)} START"
        console.print_next(following)


def _print(advice: "Advice") -> None:
    """Print what is in the images, the ways to train on them, and the advice in sentences."""
    tested = f", {advice.tested:,} to test on" if advice.tested else ""
    console.out.print(
        f"[bold]{escape(advice.name)}[/]: {advice.images:,} training images{tested}, "
        f"{advice.classes:,} classes"
    )
    for warning in () if advice.check is None else advice.check.warnings:
        console.out.print(f"  [yellow]![/] {escape(warning)}")
    console.print_lines("")
    console.print_table(
        ("begin from", "model", "probe", "expected", "steps", "time", "memory"),
        (_cells(option, advice) for option in (*advice.options, advice.scratch)),
        text=(0, 1),
    )
    console.print_lines("")
    for sentence in advice.sentences:
        console.out.print(f"- {sentence}", markup=False)


def _cells(option: "Way", advice: "Advice") -> list[str | Text]:
    """Write the row of a way to train; the advised way stands out."""
    mark: Callable[[str], str | Text] = console.bold if option is advice.chosen else str
    return [
        mark("new weights" if option is advice.scratch else option.start or option.published),
        option.where,
        "" if option.folded is None else f"{option.folded.accuracy:.0%}",
        "" if option.forecast is None else mark(option.forecast.percentages),
        f"{option.steps:,}",
        format_duration(option.seconds),
        format_bytes(option.memory),
    ]
