"""`vitkit report`: a run folder on one page."""

from pathlib import Path

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.runs.config import read_config
from vitkit.runs.folder import kind_of
from vitkit.text import format_bytes

VERB = Verb("report", "vitkit.jobs.report", "write_report")


def main(arguments: list[str]) -> None:
    """Parse the command line and write the report."""
    given = VERB.parse(arguments)
    if kind_of(given["run"]).kind != "series":
        read_config(Path(given["run"]))  # raises where it is no run
    path = VERB.call(given)
    size = format_bytes(path.stat().st_size)
    console.print_lines(f"{path} ({size})")
    console.print_next(f"open {path} in a browser")
