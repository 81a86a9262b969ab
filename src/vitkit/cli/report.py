"""`vitkit report`: a run folder on one page."""

from dataclasses import dataclass
from pathlib import Path

from vitkit.cli import console
from vitkit.cli.console import TerminalListener
from vitkit.cli.options import importing, parse
from vitkit.runs.config import read_config
from vitkit.runs.folder import kind_of
from vitkit.text import format_bytes


@dataclass(frozen=True)
class Command:
    """Write a run's report.html again."""

    run: str
    """folder of a run or of a series of runs."""


def main(arguments: list[str]) -> None:
    """Parse the command line and write the report."""
    run = parse(Command, arguments, "report").run
    if kind_of(run).kind != "series":
        read_config(Path(run))  # raises where it is no run
    with importing():
        from vitkit.jobs.report import write_report

    path = write_report(run, listener=TerminalListener())
    size = format_bytes(path.stat().st_size)
    console.print_lines(f"{path} ({size}). Open it in a browser; it needs no network.")
