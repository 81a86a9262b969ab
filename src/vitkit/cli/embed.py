"""`vitkit embed`: keep the features of many images in files."""

import shlex
from dataclasses import dataclass

from vitkit.cli import console
from vitkit.cli.checks import require_checkpoints, require_images
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import EmbedOptions
from vitkit.text import join_names, pluralize


@dataclass(frozen=True, kw_only=True)
class Command(EmbedOptions):
    """Compute the features of images by a frozen model, and keep them in files."""


def main(arguments: list[str]) -> None:
    """Parse the command line, compute the features, and say where they are."""
    options = parse(Command, arguments, "embed")
    require_images(options.data)
    require_checkpoints(options.path)
    with importing():
        from vitkit.jobs.embed import run_embed

    console.download(options.path)
    made = run_embed(options)
    console.print_rejects(made.rejects, "have no features")
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
    model, data = shlex.quote(str(options.path)), shlex.quote(str(options.data))
    console.print_next(
        f"{'pandas.read_parquet' if made.names is None else 'numpy.load'}({out!r}) in Python",
        f"vitkit fewshot {model} {data}   (how well classes are learned from features)",
    )
