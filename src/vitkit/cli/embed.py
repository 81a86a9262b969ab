"""`vitkit embed`: keep the features of many images in files."""

import shlex
from dataclasses import dataclass

from vitkit.cli import console
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import EmbedOptions
from vitkit.text import pluralize


@dataclass(frozen=True)
class Command(EmbedOptions):
    """Compute the features of images by a frozen model, and keep them in files."""


def main(arguments: list[str]) -> None:
    """Parse the command line, compute, and say where the features are."""
    options: Command = parse(Command, arguments, "embed")
    with importing():
        from vitkit.cli.console import download
        from vitkit.jobs.embed import run_embed

    download(options.path)
    found = run_embed(options)
    console.print_rejects(found.rejects, "have no features")
    again = (
        f"; {pluralize(found.continued, 'part was', 'parts were')} there already" if found.continued else ""
    )
    made = f"Features of {pluralize(found.images, 'image')}, {found.width:,} of each, in {found.out}{again}."
    out, model, data = (str(found.out), shlex.quote(str(options.path)), shlex.quote(str(options.data)))
    lines = [made, f"Next: pandas.read_parquet({out!r}) in Python"]
    if found.names is not None:
        lines = [made, f"The names of the rows are in {found.names}.", f"Next: numpy.load({out!r}) in Python"]
    lines.append(f"      vitkit fewshot {model} --data {data}   (how well classes are learned from features)")
    console.out.print(*lines, sep="\n", markup=False, soft_wrap=True)
