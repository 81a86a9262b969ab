"""`vitkit evaluate`: measure a model on images it was not trained on."""

from pathlib import Path

from vitkit.cli import console, options
from vitkit.cli.verb_options import CSV, JSON, PROCESSES
from vitkit.errors import VitkitError
from vitkit.world import world_of_environment

PROTOCOL = options.Verb("evaluate", "vitkit.jobs.evaluate", "evaluate_protocol")
KEEP = options.Verb("evaluate", "vitkit.jobs.evaluate", "keep_with_page")
OWN = (*PROTOCOL.only("protocol", "labels", "wnids"), *KEEP.only("out"), CSV, JSON, PROCESSES)
VERB = options.Verb("evaluate", "vitkit.jobs.evaluate", "evaluate", *OWN)


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers."""
    given = VERB.parse(arguments)
    protocol = given.get("protocol")
    if protocol is None and {"labels", "wnids"} & {*given}:
        raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
    if protocol is not None:
        if "data" not in given:
            raise VitkitError(f"--protocol {protocol} needs --data, the folder of its images.")
        if "split" in given:
            raise VitkitError(f"--protocol {protocol} scores all images of --data: leave --split out.")
        if world_of_environment().size > 1:
            raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
        if "out" in given:
            raise VitkitError("--protocol makes no page: leave --out out, or give --json.")
        console.print_result(PROTOCOL.call(given), given)
        return
    if "out" in given and (not given["out"].lower().endswith(".html") or Path(given["out"]).is_dir()):
        raise VitkitError(f"--out is a file for the page that ends in .html, found {given['out']}.")
    console.print_result(KEEP.call(given, VERB.call(given)), given)
