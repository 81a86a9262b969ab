"""`vitkit embed`: keep the features of many images in files."""

import shlex

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.result import unreadable
from vitkit.text import join_names, pluralize

VERB = Verb("embed", "vitkit.jobs.embed", "embed")


def main(arguments: list[str]) -> None:
    """Parse the command line, compute the features, and say where they are."""
    given = VERB.parse(arguments)
    made = VERB.call(given)
    console.print_blocks(unreadable(made.rejects, "have no features"))
    if made.retry:
        files = join_names([str(path) for path in made.retry])
        console.print_lines(f"To read them again, mend them, remove {files} and give the same command.")
    out = str(made.out)
    console.print_lines(
        f"Features of {pluralize(made.images, 'image')}, {made.width:,} of each, in {out}"
        f"{console.say_continued(made.continued)}."
    )
    if made.names is not None:
        console.print_lines(f"The names of the rows are in {made.names}.")
    model, data = shlex.quote(given["path"]), shlex.quote(given["data"])
    console.print_next(
        f"{'pandas.read_parquet' if made.names is None else 'numpy.load'}({out!r}) in Python",
        f"vitkit fewshot {model} {data}   (how well classes are learned from features)",
    )
