"""`vitkit data`: `check` reads every image of a data set, `show` draws some as a model sees them."""

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from vitkit.cli import console
from vitkit.cli.help import ASKING
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.cli.options import Verb
from vitkit.cli.training_options import with_named_task
from vitkit.cli.verb_options import JSON, Option, describe
from vitkit.errors import VitkitError
from vitkit.jobs.recipes import recipe
from vitkit.runs.config import Run
from vitkit.weights.published import default_starts

if TYPE_CHECKING:
    from vitkit.data.check import DataCheck

SHOWN = 20
"""Lines of a long list that are printed; --json prints all."""

VERB = Verb("data check", "vitkit.jobs.data_check", "check", JSON)
SHOW = Verb("data show", "vitkit.jobs.data_show", "show")


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

    def training(own: Mapping[str, Any]) -> Sequence[Option]:
        run = with_named_task(recipe(own["recipe"]) if "recipe" in own else Run(), arguments)
        return describe(Run, run, without=("data", "recipe"))

    given, options = SHOW.parse_with_training(arguments, training)
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
    console.out.print(f"[bold]{escape(data.name)}[/]: {data.kind}", *map(escape, data.notes), sep="\n")
    _print_counts(data)
    _print_files(data)
    if data.warnings:
        console.out.print("\n[bold]To look at[/]")
        for warning in data.warnings:
            console.out.print(f"  [yellow]![/] {escape(warning)}")
    elif not data.problems:
        console.out.print("\nNothing stands out.")
    if data.problems:  # the error that follows says them
        return
    if data.advice:
        console.out.print(f"\n[bold]Advice[/]  {escape(' '.join(data.advice))}")
    recipe = "digits" if path == "digits" else data.recipe
    quoted, remark = shlex.quote(path), "vitkit recipes lists others"
    command = f"vitkit train --recipe {recipe} --data {quoted}"
    if data.advice:  # to begin from a checkpoint, and not from scratch
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
    console.print_next(f"{command}   ({remark})")


def _print_counts(data: "DataCheck") -> None:
    """Print how many files each class has in each split."""
    splits = data.counts.values()
    names = list(next(iter(splits)))
    rows = [(name, *(f"{counts[name]:,}" for counts in splits)) for name in names[:SHOWN]]
    if len(names) > SHOWN:
        rows.append((f"... {len(names) - SHOWN} more", *[""] * len(splits)))
    total = [console.bold(f"{count:,}") for count in data.images.values()]
    console.print_table(("class", *data.counts), [*rows, (console.bold("all"), *total)])


def _print_files(data: "DataCheck") -> None:
    """Print sizes, formats and colour modes of the files, and list unreadable and repeated ones."""
    if data.sizes is not None:
        sizes, smallest = data.sizes, _size(data.sizes.smallest)
        spread = f"all {smallest}"
        if sizes.smallest != sizes.largest:
            common = ", ".join(f"{h}x{w} ({count:,})" for (h, w), count in sizes.common)
            spread = (
                f"{smallest} to {_size(sizes.largest)}, median {_size(sizes.median)}; most common {common}"
            )
        console.out.print(f"sizes (height x width): {spread}")
    for title, counts in (("formats", data.formats), ("colour modes", data.modes)):
        console.out.print(f"{title}: " + ", ".join(f"{name} ({count:,})" for name, count in counts.items()))
    _print_list("Unreadable files", [f"{bad.split}: {bad.key}: {bad.reason}" for bad in data.bad])
    groups = [", ".join(f"{copy.split}: {copy.key}" for copy in group) for group in data.duplicates]
    _print_list("Files with the same pixels", groups)


def _print_list(title: str, lines: list[str]) -> None:
    if lines:
        console.out.print(f"\n[bold]{title}[/] ({len(lines):,})")
        for line in lines[:SHOWN]:
            console.out.print(f"  {escape(line)}")
        if len(lines) > SHOWN:
            console.out.print(f"  ... {len(lines) - SHOWN:,} more (--json lists all)")


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
