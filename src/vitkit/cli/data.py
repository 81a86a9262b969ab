"""`vitkit data`: what is done with data sets: `check` looks at every image, `show` draws some as a model sees
them."""

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.help import ASKING, HelpPage
from vitkit.cli.mistakes import WrongCommandLine
from vitkit.cli.options import importing, parse, parse_study
from vitkit.cli.train import describe_training, study_base
from vitkit.data.config import DecodeRule
from vitkit.jobs.finetune_defaults import AUGMENTATION
from vitkit.jobs.options import DataCheckOptions, DataShowOptions
from vitkit.jobs.recipes import recipe
from vitkit.runs.config import Run
from vitkit.weights.published import default_starts

if TYPE_CHECKING:
    from vitkit.data.check import DataCheck

SHOWN = 20
"""Lines of a long list that are printed; --json prints all."""


@dataclass(frozen=True)
class Command(DataCheckOptions):
    """Read every image once and say what is there: counts, sizes, bad files, duplicates."""

    decode: Annotated[DecodeRule, tyro.conf.OmitArgPrefixes] = field(default_factory=DecodeRule)
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON."""


HELP = HelpPage(
    "PATH [OPTIONS]",
    (
        "--task",
        "--splits.val-fraction",
        "--splits.test-fraction",
        "--splits.seed",
        "--splits.group",
        "--splits.folds",
        "--channels",
        "--max-pixels",
        "--json",
    ),
    (
        "vitkit data check my_photos/",
        "vitkit data check labels.csv --task multi-label --json",
    ),
)


@dataclass(frozen=True)
class Show(DataShowOptions):
    """Draw training images beside augmented versions of each, as a model sees them.

    All options of vitkit train that change images may follow: --image-size, --crop-area, --rand-augment,
    --seed, --splits..."""


SHOW_HELP = HelpPage(
    "PATH [OPTIONS]",
    ("--start", "--recipe", "--images", "--versions", "--out"),
    (
        "vitkit data show my_photos/",
        "vitkit data show my_photos/ --crop-area 0.05,1 --out views.png",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line, check a data set and print what was found; or draw some of its images."""
    if not arguments or arguments[0] not in ("check", "show", *ASKING):
        found = f"'{arguments[0]}'" if arguments else "nothing"
        raise WrongCommandLine(f"After 'vitkit data' comes 'check PATH' or 'show PATH', found {found}.")
    if arguments[0] == "show":
        _show(arguments[1:])
        return
    options: Command = parse(
        Command, arguments[1:] if arguments[0] == "check" else arguments, "data check", HELP
    )
    require_images(options.path)
    with importing():
        from vitkit.jobs.data_check import check

    checked = check(options)
    if options.json_output:
        console.print_json(checked.to_json())
    else:
        print_check(checked, options)


def _show(arguments: list[str]) -> None:
    """Draw images as the training sees them that the command line describes."""
    command, of_training = parse_study(Show, arguments, "data show", SHOW_HELP, describe_training)
    require_images(command.path)
    require_checkpoints(command.start)
    of_training += ["--data", command.path, *(["--start", command.start] if command.start else [])]
    base = recipe(command.recipe) if command.recipe else Run(augmentation=AUGMENTATION)
    run, _given = study_base(of_training, command.recipe, base, "data show", "nothing", command.listener)
    with importing():
        from vitkit.jobs.data_show import describe_augmentation, run_show

    out = run_show(command, run)
    # Nobody fine-tunes the digits of the demonstration from a start for photos.
    quoted = shlex.quote(command.path)
    following = "vitkit train --recipe digits" if command.path == "digits" else f"vitkit finetune {quoted}"
    console.out.print(
        f"Changed at random: {'; '.join(describe_augmentation(run.augmentation)) or 'nothing'}.",
        str(out),
        f"\nNext: open {out} in a browser\n      {following}",
        sep="\n",
        markup=False,
        soft_wrap=True,
    )


def print_check(found: "DataCheck", options: DataCheckOptions) -> None:
    """Print what is in a data set.

    Args:
        found: by `check`.
        options: as they were given.
    """
    console.out.print(f"[bold]{escape(found.name)}[/]: {found.kind}", *map(escape, found.notes), sep="\n")
    _print_counts(found)
    _print_files(found)
    if found.warnings:
        console.out.print("\n[bold]To look at[/]")
        for warning in found.warnings:
            console.out.print(f"  [yellow]![/] {escape(warning)}")
    else:
        console.out.print("\nNothing stands out.")
    if found.advice:
        console.out.print(f"\n[bold]Advice[/]  {escape(' '.join(found.advice))}")
    recipe = "digits" if options.path == "digits" else found.recipe
    # Whoever is advised to begin from a checkpoint is not sent to training from scratch.
    quoted, lists = shlex.quote(options.path), "vitkit recipes lists others"
    command = f"vitkit train --recipe {recipe} --data {quoted}"
    if found.advice:
        starts = ", ".join(f"{start.name} ({start.megabytes:,.0f} MB)" for start in default_starts())
        command = f"vitkit finetune {quoted}"
        lists = (
            f"from {starts}: it takes the largest that this machine fine-tunes within an hour, and asks "
            "before it fetches that"
        )
    if options.task != "classification":
        command += f" --task {options.task}"
    if not any(found.counts.values()):  # no class was counted: images alone are learned from
        command = f"vitkit pretrain {shlex.quote(options.path)} --objective {options.task}"
        lists = "it needs no labels"
    console.out.print(
        f"\nNext: {command}   ({lists})",
        markup=False,
        soft_wrap=True,  # so that the command can be copied
    )


def _print_counts(found: "DataCheck") -> None:
    """Print how many files each class has in each split."""
    table = Table("class", *[f"{split}" for split in found.counts], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    names = list(next(iter(found.counts.values())))
    for name in names[:SHOWN]:
        table.add_row(escape(name), *(f"{counts[name]:,}" for counts in found.counts.values()))
    if len(names) > SHOWN:
        table.add_row(f"... {len(names) - SHOWN} more")
    table.add_row("[bold]all[/]", *(f"[bold]{count:,}[/]" for count in found.images.values()))
    console.out.print(table)


def _print_files(found: "DataCheck") -> None:
    """Print what the files are: sizes, formats, colour modes, bad ones and repeated ones."""
    if found.sizes is not None:
        sizes, smallest = found.sizes, _size(found.sizes.smallest)
        spread = f"all {smallest}"
        if sizes.smallest != sizes.largest:
            common = ", ".join(f"{h}x{w} ({count:,})" for (h, w), count in sizes.common)
            spread = (
                f"{smallest} to {_size(sizes.largest)}, median {_size(sizes.median)}; most common {common}"
            )
        console.out.print(f"sizes (height x width): {spread}")
    for title, counts in (("formats", found.formats), ("colour modes", found.modes)):
        console.out.print(f"{title}: " + ", ".join(f"{name} ({count:,})" for name, count in counts.items()))
    _print_list("Unreadable files", [f"{bad.split}: {bad.key}: {bad.reason}" for bad in found.bad])
    groups = [", ".join(f"{copy.split}: {copy.key}" for copy in group) for group in found.duplicates]
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
