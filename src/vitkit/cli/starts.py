"""`vitkit starts`: published checkpoints that a run can begin from by name."""

from collections.abc import Sequence
from dataclasses import asdict, replace

from vitkit.cli import console, options, verb_options
from vitkit.weights.published import SOURCES, PublishedStart

DESCRIBED = 5
"""The most starts of which addresses, licence and source are printed below the table."""

UNPINNED = "not pinned: what is fetched first is remembered, and another file is refused from then on"


LONG = replace(verb_options.JSON, text="print everything as JSON, with licences and sources.")
VERB = options.Verb("starts", "vitkit.weights.published", "starts", LONG)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the checkpoints."""
    given = VERB.parse(arguments)
    listed = VERB.call(given)
    if given.get("json"):
        console.print_json(
            [asdict(start) | {"source": [SOURCES[key] for key in start.source]} for start in listed]
        )
        return
    print_starts(listed)


def print_starts(listed: Sequence[PublishedStart]) -> None:
    """Print checkpoints as a table; where they are few, with their addresses."""
    columns = {
        "start": [start.name for start in listed],
        "model": [start.model for start in listed],
        "trained on": [start.data for start in listed],
        "by": [start.training for start in listed],
        "pixels": [str(start.image_size) for start in listed],
        "classes": [f"{start.classes:,}" if start.classes else "no head" for start in listed],
        "parameters": [f"{start.parameters:,}" for start in listed],
    }
    # A narrow terminal would break names: columns are left out that the name of a start says too.
    for spare in ("by", "classes", "trained on"):
        if sum(max(map(len, (name, *cells))) + 2 for name, cells in columns.items()) - 2 > console.out.width:
            del columns[spare]
    texts = [number for number, name in enumerate(columns) if name in ("start", "model", "trained on", "by")]
    console.print_table(columns, zip(*columns.values(), strict=True), text=texts)
    pinned = sum(start.is_pinned for start in listed)
    console.print_lines(f"\n{pinned} of {len(listed)} are pinned to a SHA-256.")
    for start in listed if len(listed) <= DESCRIBED else ():
        size = f"; original file {start.original_mib:,} MiB" if start.original_mib else ""
        lines = [f"{start.name}: {start.licence}{size}", f"fetched from {start.address}"]
        lines.append(
            f"pinned: SHA-256 {start.sha256}, {start.revision}".rstrip(", ") if start.is_pinned else UNPINNED
        )
        lines += (f"published also as {address}" for address in start.other_addresses)
        lines += (f"according to {SOURCES[key]}" for key in start.source)
        console.print_lines("\n" + "\n  ".join(lines))
    name = listed[0].name if len(listed) == 1 else "START"
    addresses = [f"vitkit starts {name}   (its addresses)"] if len(listed) > DESCRIBED else []
    console.print_next(*addresses, f"vitkit finetune {name} PATH")
