"""`vitkit inspect`: what a model has learned, as pictures."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.options import importing, parse, read_names
from vitkit.jobs.options import InspectOptions, as_names
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import kind_of


@dataclass(frozen=True, kw_only=True)
class Command(InspectOptions):
    """Draw filters, position embeddings, attention distance and attention rollout, as PNG and SVG."""


def main(arguments: list[str]) -> None:
    """Parse the command line and draw the pictures."""
    options = parse(Command, arguments, "inspect")
    if options.out is not None:
        require_folder(Path(options.out))
    require_checkpoints(options.path)
    with importing():
        from vitkit.jobs.inspect import draw_pictures

    if options.images:
        options = replace(options, images=read_names(as_names(options.images)))
    console.download(options.path)
    drawn = draw_pictures(options)
    for path in drawn.pictures:
        console.out.print(str(path), markup=False)
    if drawn.without_attention:
        console.out.print(f"No pictures of attention: {drawn.without_attention}.")
    model = shlex.quote(str(options.path))
    if kind_of(options.path).is_run:
        console.print_next(f"vitkit report {model}   (the whole run on one page)")
    else:
        console.print_next(f"vitkit card {model}   (what the model is)")
