"""`vitkit evaluate`: measure a model on images it was not trained on."""

import shlex

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.cli.processes import start_several
from vitkit.cli.verb_options import JSON, PROCESSES
from vitkit.errors import VitkitError
from vitkit.world import world_of_environment

PROTOCOL = Verb("evaluate", "vitkit.jobs.evaluate", "evaluate_protocol")
OF_PROTOCOL = PROTOCOL.only("protocol", "labels", "wnids")
OUT = Verb("evaluate", "vitkit.jobs.evaluate", "write_evaluation_page").only("out")
VERB = Verb("evaluate", "vitkit.jobs.evaluate", "evaluate", *OF_PROTOCOL, *OUT, JSON, PROCESSES)


def main(arguments: list[str]) -> None:
    """Parse the command line, evaluate, and print the numbers."""
    if start_several("evaluate", arguments):
        return
    given = VERB.parse(arguments)
    protocol = given.get("protocol")
    if protocol is None and {"labels", "wnids"} & {*given}:
        raise VitkitError("--labels and --wnids belong to a --protocol: give one, or leave them out.")
    if protocol is not None and "data" not in given:
        raise VitkitError(f"--protocol {protocol} needs --data, the folder of its images.")
    if protocol is not None and "split" in given:
        raise VitkitError(f"--protocol {protocol} scores all images of --data: leave --split out.")
    if protocol is not None and world_of_environment().size > 1:
        raise VitkitError("--protocol is scored by one process: leave --processes out, or torchrun.")
    if protocol is not None and "out" in given:
        raise VitkitError("--protocol makes no page: leave --out out, or give --json.")
    if protocol is not None:
        console.print_result(PROTOCOL.call(given), bool(given.get("json")))
        return
    evaluation = VERB.call(given)
    from vitkit.jobs.evaluate import keep_evaluation, write_evaluation_page

    path = keep_evaluation(evaluation, console.TerminalListener())
    page = write_evaluation_page(evaluation, path, out=given.get("out"))
    if given.get("json"):
        record = {
            "model": evaluation.model.name,
            "data": evaluation.data.name,
            "split": "all" if evaluation.whole else evaluation.split,
            "rejects": evaluation.rejects,
            "kept_in": None if path is None else str(path),
            "page": None if page is None else str(page),
        }
        console.print_json({**record, **evaluation.result.to_json()})
        return
    console.print_blocks(evaluation.blocks())
    model = shlex.quote(given["path"])
    if page is not None:
        beside = "" if "out" in given else f" (vitkit report {model} writes the run's own with a link to it)"
        console.print_lines(f"Page: {page}{beside}")
    if path is None:
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")
    elif evaluation.trained_on:
        console.print_lines(f"Kept in {path}.")
        console.print_next(f"vitkit report {model}")
    else:
        console.print_lines(f"Kept in {path}: every class and confusion, and which images were mistaken.")
        console.print_next(f"vitkit predict {model} IMAGE_OR_FOLDER")
