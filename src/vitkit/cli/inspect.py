"""`vitkit inspect`: what a model has learned, as pictures."""

import shlex
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints
from vitkit.cli.options import call, importing, parse_given, read_names
from vitkit.cli.verb_options import describe
from vitkit.jobs.functions import read_signature
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import kind_of

SIGNATURE = read_signature("vitkit.jobs.inspect", "inspect")
OPTIONS = describe(SIGNATURE)


def main(arguments: list[str]) -> None:
    """Parse the command line and draw the pictures."""
    given = parse_given(SIGNATURE, OPTIONS, arguments, "inspect")
    if "out" in given:
        require_folder(Path(given["out"]))
    require_checkpoints(given["model"])
    with importing():
        from vitkit.jobs.inspect import inspect

    given["images"] = read_names(given["images"])
    console.download(given["model"])
    drawn = call(inspect, given, OPTIONS)
    for path in drawn.pictures:
        console.out.print(str(path), markup=False)
    if drawn.without_attention:
        console.out.print(f"No pictures of attention: {drawn.without_attention}.")
    model = shlex.quote(given["model"])
    if kind_of(given["model"]).is_run:
        console.print_next(f"vitkit report {model}   (the whole run on one page)")
    else:
        console.print_next(f"vitkit card {model}   (what the model is)")
