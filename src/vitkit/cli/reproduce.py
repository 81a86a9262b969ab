"""`vitkit reproduce`: the figures and tables of the paper at this machine's size, beside its numbers."""

from vitkit.cli import console, options
from vitkit.cli.verb_options import JSON, Option
from vitkit.result import Listing, Table

LIST = Option(
    "--list",
    "list",
    text="list the figures and tables: what each is, what it needs, how long it takes here and at the "
    "paper's size.",
    default=False,
)
VERB = options.Verb("reproduce", "vitkit.jobs.reproduce.reproduce", "reproduce", LIST, JSON)


def main(arguments: list[str]) -> None:
    """Parse the command line, do the study, and print whether the paper's conclusion holds here."""
    if not arguments or "--list" in arguments:
        with options.importing():
            from vitkit.jobs.reproduce.items import ITEMS
        keys = ("title", "conclusion", "needs", "here", "at_paper_size")
        listed = [{"item": name} | {key: getattr(item, key) for key in keys} for name, item in ITEMS.items()]
        shown = ("item", "title", "needs", "here", "at_paper_size")
        rows = tuple(tuple(item[key] for key in shown) for item in listed)
        table = Table(("", "what it is", "needs", "here", "at the paper's size"), rows, text=range(5))
        uses = ("vitkit reproduce table8 --plan",)
        console.print_result(Listing("", (table,), uses, {"items": listed}), {"json": "--json" in arguments})
        return
    given = options.parse_given(VERB.signature, VERB.options, arguments, "reproduce")
    options.require_images(given.get("data"))
    if given["item"] == "fig12":  # which times models by name too
        options.require_models(given.get("start", ()))
    else:
        options.require_checkpoints(*given.get("start", ()))
    VERB.run(arguments, given)
