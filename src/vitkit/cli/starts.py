"""`vitkit starts`: published checkpoints that a run can begin from by name."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.help import HelpPage
from vitkit.cli.options import parse
from vitkit.jobs.options import StartsOptions
from vitkit.weights.published import SOURCES, PublishedStart, starts

DESCRIBED = 5
"""The most starts of which addresses, licence and source are printed below the table."""

UNPINNED = "not pinned: what is fetched first is remembered, and another file is refused from then on"


@dataclass(frozen=True)
class Command(StartsOptions):
    """List published checkpoints: their names stand wherever a command takes a checkpoint."""

    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print everything as JSON, with addresses, licences and sources."""


HELP = HelpPage(
    "[PATTERN...] [OPTIONS]",
    (
        "--model",
        "--data",
        "--json",
    ),
    (
        "vitkit starts 'vit-b16*'",
        "vitkit starts --model ViT-Ti/16",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the checkpoints."""
    options: Command = parse(Command, arguments, "starts", HELP)
    found = starts(*options.patterns, model=options.model, data=options.data)
    if options.json_output:
        console.print_json(
            [asdict(start) | {"source": [SOURCES[key] for key in start.source]} for start in found]
        )
        return
    print_starts(found)


def print_starts(found: Sequence[PublishedStart]) -> None:
    """Print checkpoints as a table; where they are few, with their addresses."""
    rows = [
        {
            "start": start.name,
            "model": start.model,
            "trained on": start.data,
            "by": start.training,
            "pixels": str(start.image_size),
            "classes": f"{start.classes:,}" if start.classes else "no head",
            "parameters": f"{start.parameters:,}",
        }
        for start in found
    ]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    # Cut words help nobody: on a narrow terminal columns are left out that the name of a start says too.
    for spare in ("by", "classes", "trained on"):
        if sum(widths.values()) + 2 * (len(widths) - 1) > console.out.width:
            del widths[spare]
    table = Table(*widths, box=None, pad_edge=False)
    table.columns[0].no_wrap = True  # it is what one copies
    for column in table.columns:
        if column.header in ("pixels", "classes", "parameters"):
            column.justify = "right"
    for row in rows:
        table.add_row(*(row[name] for name in widths))
    console.out.print(table)
    pinned = sum(start.is_pinned for start in found)
    console.out.print(f"\n{pinned} of {len(found)} are pinned to a SHA-256.", markup=False)
    for start in found if len(found) <= DESCRIBED else ():
        size = f"; original file {start.original_mib:,} MiB" if start.original_mib else ""
        lines = [f"{start.name}: {start.licence}{size}", f"fetched from {start.address}"]
        lines.append(
            f"pinned: SHA-256 {start.sha256}, {start.revision}".rstrip(", ") if start.is_pinned else UNPINNED
        )
        lines += (f"published also as {address}" for address in start.addresses[1:])
        lines += (f"according to {SOURCES[key]}" for key in start.source)
        console.out.print("\n" + "\n  ".join(lines), markup=False, soft_wrap=True)
    name = found[0].name if len(found) == 1 else "START"
    console.out.print(
        f"\nNext: vitkit starts {name}   (its addresses)\n      vitkit finetune {name} --data PATH"
        if len(found) > DESCRIBED
        else f"\nNext: vitkit finetune {name} --data PATH",
        markup=False,
        soft_wrap=True,
    )
