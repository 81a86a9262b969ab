"""`vitkit fewshot`: learn classes from a few images by the features of a checkpoint."""

import shlex

from vitkit.cli import console, options
from vitkit.cli.verb_options import JSON, PROCESSES
from vitkit.runs.folder import require_folder

KEEP = options.Verb("fewshot", "vitkit.jobs.fewshot", "keep_fewshot")
VERB = options.Verb("fewshot", "vitkit.jobs.fewshot", "fewshot", JSON, *KEEP.only("out"), PROCESSES)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure, and print the numbers."""
    given = VERB.parse(arguments)
    require_folder(given.get("out"))  # before minutes of measurements
    measured = VERB.call(given)
    paths = KEEP.call(given, measured)
    console.print_result(measured, given)
    if given.get("json"):
        return
    console.print_lines(*map(str, paths))
    size = given.get("image_size")
    of_size = [] if size is None else ["--image-size", *map(str, size)]
    following = shlex.join(["vitkit", "fewshot", *given["starts"], "ANOTHER", given["data"], *of_size])
    console.print_next(f"{following}   (to compare them)")
