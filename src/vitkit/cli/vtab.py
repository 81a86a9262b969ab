"""`vitkit vtab`: fine-tune a checkpoint on the 19 tasks of VTAB-1k, and take the mean."""

import shlex
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.checks import require_images
from vitkit.cli.options import Verb
from vitkit.cli.verb_options import JSON
from vitkit.runs.folder import require_folder

VERB = Verb("vtab", "vitkit.jobs.vtab.vtab", "vtab", JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, fine-tune on each task, and print the table."""
    given = VERB.parse(arguments)
    if "out" in given:
        require_folder(Path(given["out"]))
    require_images(given.get("root"))
    vtab = VERB.call(given, command=shlex.join(["vitkit", "vtab", *arguments]))
    console.print_result(vtab, bool(given.get("json")))
