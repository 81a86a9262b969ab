"""`vitkit data`: `check` reads every image of a data set, `show` draws some as a model sees them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vitkit.cli import console
from vitkit.cli.help import ASKING
from vitkit.cli.options import Verb
from vitkit.cli.train import recipe_of
from vitkit.cli.verb_options import JSON, Option, describe
from vitkit.errors import VitkitError, WrongCommandLine
from vitkit.result import Block, Text
from vitkit.runs.config import Run
from vitkit.text import format_size
from vitkit.weights.published import default_starts

if TYPE_CHECKING:
    from vitkit.data.check import DataCheck

SHOWN = 20
"""Lines of a long list that are printed; --json prints all."""

VERB = Verb("data check", "vitkit.jobs.data_show", "check", JSON)


def _describe(own: Mapping[str, Any], line: Sequence[str]) -> tuple[Option, ...]:
    return describe(Run, recipe_of(own, line), without=("data", "recipe"))


SHOW = Verb("data show", "vitkit.jobs.data_show", "show", of_training=_describe)


def main(arguments: list[str]) -> None:
    """Parse the command line, check a data set and print the findings; or draw some of its images."""
    if not arguments or arguments[0] not in ("check", "show", *ASKING):
        first = f"'{arguments[0]}'" if arguments else "nothing"
        raise WrongCommandLine(f"After 'vitkit data' comes 'check PATH' or 'show PATH', found {first}.")
    if arguments[0] == "show":
        _show(arguments[1:])
        return
    given = VERB.parse(arguments[arguments[0] == "check" :])
    checked = VERB.call(given)
    if given.get("json"):
        console.print_json(checked.to_json())
        raise SystemExit(int(bool(checked.problems)))  # they are in the one object that is printed
    print_check(checked, given["path"], given.get("task", "classification"))
    if checked.problems:
        raise VitkitError("Training refuses these images as they are:\n" + "\n".join(checked.problems))


def _show(arguments: list[str]) -> None:
    """Draw images as a training with the options of the command line sees them."""
    given, options = SHOW.parse_with_training(arguments)
    out, run = SHOW.call(given, **options)
    from vitkit.jobs.data_show import describe_augmentation

    console.print_lines(
        f"Changed at random: {'; '.join(describe_augmentation(run.augmentation)) or 'nothing'}.", str(out)
    )
    path = given["path"]
    # Nobody fine-tunes the digits of the demonstration from a start for photos.
    following = "vitkit train --recipe digits" if path == "digits" else f"vitkit finetune {shlex.quote(path)}"
    console.print_next(f"open {out} in a browser", following)


def print_check(data: "DataCheck", path: str, task: str) -> None:
    """Print what is in a data set, and the command that trains on it.

    Args:
        data: the findings of the check.
        path: the images.
        task: what will be learned.
    """
    splits = data.counts.values()
    names = list(next(iter(splits)))
    rows = [(name, *(f"{counts[name]:,}" for counts in splits)) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        rows.append((f"... {len(names) - SHOWN} more", *[""] * len(splits)))
    total = [console.bold(f"{count:,}") for count in data.images.values()]
    console.print_blocks([Text(f"{data.name}: {data.kind}", "answer"), *data.notes])
    console.print_table(("class", *data.counts), [*rows, (console.bold("all"), *total)])
    blocks: list[Block] = []
    if (sizes := data.sizes) is not None:
        smallest, largest, median = map(format_size, (sizes.smallest, sizes.largest, sizes.median))
        common = ", ".join(f"{format_size(size)} ({count:,})" for size, count in sizes.common)
        spread = f"{smallest} to {largest}, median {median}; most common {common}"
        blocks.append(f"sizes (height x width): {f'all {smallest}' if smallest == largest else spread}")
    for title, counted in (("formats", data.formats), ("colour modes", data.modes)):
        blocks.append(f"{title}: " + ", ".join(f"{name} ({count:,})" for name, count in counted.items()))
    groups = [", ".join(f"{copy.split}: {copy.key}" for copy in group) for group in data.duplicates]
    blocks += _listed("Unreadable files", [f"{bad.split}: {bad.key}: {bad.reason}" for bad in data.bad])
    blocks += _listed("Files with the same pixels", groups)
    if data.warnings:
        blocks += ["", Text("To look at", "answer"), *(f"  ! {warning}" for warning in data.warnings)]
    elif not data.problems:
        blocks.append("\nNothing stands out.")
    if data.problems:  # the error that follows says them
        console.print_blocks(blocks)
        return
    recipe = "digits" if path == "digits" else data.recipe
    quoted, remark = shlex.quote(path), "vitkit recipes lists others"
    command = f"vitkit train --recipe {recipe} --data {quoted}"
    if data.advice:  # to begin from a checkpoint, and not from scratch
        blocks.append(f"\nadvice  {' '.join(data.advice)}")
        starts = ", ".join(f"{start.name} ({start.megabytes:,.0f} MB)" for start in default_starts())
        command = f"vitkit finetune {quoted}"
        remark = (
            f"from {starts}: it takes the largest that this machine fine-tunes within an hour, and asks "
            "before it fetches that"
        )
    if task != "classification":
        command += f" --task {task}"
    if not any(data.counts.values()):  # there are no classes
        command = f"vitkit pretrain {quoted} --objective {task}"
        remark = "it needs no labels"
    console.print_blocks(blocks)
    console.print_next(f"{command}   ({remark})")


def _listed(title: str, lines: list[str]) -> list[Block]:
    """List lines below a title with their number, a long list in part."""
    shown: list[Block] = [f"  {line}" for line in lines[:SHOWN]]
    more = [f"  ... {len(lines) - SHOWN:,} more (--json lists all)"] if len(lines) > SHOWN else []
    return ["", Text(f"{title} ({len(lines):,})", "answer"), *shown, *more] if lines else []
