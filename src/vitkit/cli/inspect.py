"""`vitkit inspect`: what a model has learned, as pictures."""

import shlex
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.options import Verb, read_names
from vitkit.runs.destination import require_folder
from vitkit.runs.folder import kind_of

VERB = Verb("inspect", "vitkit.jobs.inspect", "inspect")


def main(arguments: list[str]) -> None:
    """Parse the command line and draw the pictures."""
    given = VERB.parse(arguments)
    if "out" in given:
        require_folder(Path(given["out"]))
    given["images"] = read_names(given["images"])
    drawn = VERB.call(given)
    for path in drawn.pictures:
        console.out.print(str(path), markup=False)
    if drawn.without_attention:
        console.out.print(f"No pictures of attention: {drawn.without_attention}.")
    model = shlex.quote(given["model"])
    if kind_of(given["model"]).is_run:
        console.print_next(f"vitkit report {model}   (the whole run on one page)")
    else:
        console.print_next(f"vitkit card {model}   (what the model is)")
