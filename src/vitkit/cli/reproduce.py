"""`vitkit reproduce`: the figures and tables of the paper at this machine's size, beside its numbers."""

from vitkit.cli import console
from vitkit.cli.options import Verb, importing, parse_given, require_images
from vitkit.cli.verb_options import JSON, Option

LIST = Option(
    "--list",
    "list",
    text="list the figures and tables: what each is, what it needs, how long it takes here and at the "
    "paper's size.",
    default=False,
)
VERB = Verb("reproduce", "vitkit.jobs.reproduce.reproduce", "reproduce", LIST, JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, do the study, and print whether the paper's conclusion holds here."""
    if not arguments or "--list" in arguments:
        _print_list("--json" in arguments)
        return
    given = parse_given(VERB.signature, VERB.options, arguments, "reproduce")
    require_images(given.get("data"))
    VERB.run(arguments, given)


def _print_list(as_json: bool) -> None:
    """Print the figures and tables that can be reproduced."""
    with importing():
        from vitkit.jobs.reproduce.items import ITEMS

    if as_json:
        keys = ("title", "conclusion", "needs", "here", "at_paper_size")
        listed = [{"item": name} | {key: getattr(item, key) for key in keys} for name, item in ITEMS.items()]
        console.print_json({"items": listed})
        return
    console.print_table(
        ("", "what it is", "needs", "here", "at the paper's size"),
        ((name, item.title, item.needs, item.here, item.at_paper_size) for name, item in ITEMS.items()),
        text=range(5),
    )
    console.print_next("vitkit reproduce table8 --plan")
