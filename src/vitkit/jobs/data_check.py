"""`vitkit data check`: what is in a data set, before anyone spends an hour on it."""

import shlex
from typing import Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.data.check import DataCheck, check_data
from vitkit.data.decode import DecodeRule
from vitkit.data.sources import Splits, open_data
from vitkit.errors import VitkitError

SHOWN = 20
"""Lines of a long list that are printed; --json prints all."""


def main(arguments: list[str]) -> None:
    if not arguments or arguments[0] not in ("check", "-h", "--help"):
        found = f"'{arguments[0]}'" if arguments else "nothing"
        raise VitkitError(f"After 'vitkit data' comes 'check PATH', found {found}.")

    def command(
        path: Annotated[str, tyro.conf.Positional],
        splits: Splits,
        decode: Annotated[DecodeRule, tyro.conf.OmitArgPrefixes],
        json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
    ) -> None:
        """Read every image once and say what is there: counts, sizes, bad files, duplicates.

        Args:
            path: digits, a folder of class folders, a .csv, a folder of .parquet files.
            splits: how missing splits would be made.
            decode: how files are read.
            json_output: print everything as JSON.
        """
        data = open_data(path, splits, decode)
        with console.reaching("reading images") as progress:
            found = check_data(data, progress)
        if json_output:
            console.print_json({**found.to_json(), "notes": list(data.notes)})
            return
        console.out.print(f"[bold]{escape(data.name)}[/]: {data.kind}", *map(escape, data.notes), sep="\n")
        _print_counts(found)
        _print_files(found)
        if found.warnings:
            console.out.print("\n[bold]To look at[/]")
            for warning in found.warnings:
                console.out.print(f"  [yellow]![/] {escape(warning)}")
        else:
            console.out.print("\nNothing stands out.")
        console.out.print(
            f"\nNext: vitkit train --data {shlex.quote(path)}   (vitkit recipes lists starting points)",
            markup=False,
        )

    tyro.cli(command, args=arguments[1:] if arguments[0] == "check" else arguments, prog="vitkit data check")


def _print_counts(found: DataCheck) -> None:
    table = Table("class", *[f"{split}" for split in found.counts], box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    names = list(next(iter(found.counts.values())))
    for name in names[:SHOWN]:
        table.add_row(escape(name), *(f"{counts[name]:,}" for counts in found.counts.values()))
    if len(names) > SHOWN:
        table.add_row(f"... {len(names) - SHOWN} more")
    table.add_row("[bold]all[/]", *(f"[bold]{sum(counts.values()):,}[/]" for counts in found.counts.values()))
    console.out.print(table)


def _print_files(found: DataCheck) -> None:
    if found.sizes is not None:
        common = ", ".join(f"{h}x{w} ({count:,})" for (h, w), count in found.sizes.common)
        console.out.print(
            f"sizes (height x width): {_by(found.sizes.smallest)} to {_by(found.sizes.largest)}, median "
            f"{_by(found.sizes.median)}; most common {common}"
        )
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


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"
