"""`vitkit report`: a run folder on one page."""

from vitkit.cli import console
from vitkit.cli.listener import TerminalListener
from vitkit.cli.options import importing, parse
from vitkit.text import format_bytes


def main(arguments: list[str]) -> None:
    parse(_report, arguments, "report")


def _report(run: str) -> None:
    """Write a run's report.html again.

    Args:
        run: run folder.
    """
    with importing():
        from vitkit.jobs.report import write_report

    path = write_report(run, listener=TerminalListener())
    console.out.print(
        f"{path} ({format_bytes(path.stat().st_size)}). Open it in a browser; it needs no network.",
        markup=False,
        soft_wrap=True,
    )
