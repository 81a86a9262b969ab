"""`vitkit scale`: how test error falls with data, steps or size, and what three times more would buy."""

from vitkit.cli import console, options, train
from vitkit.cli.train import describe_study
from vitkit.cli.verb_options import JSON
from vitkit.errors import VitkitError
from vitkit.listener import hushed

VERB = options.Verb("scale", "vitkit.jobs.study.scale", "scale", JSON, of_training=describe_study)


def main(arguments: list[str]) -> None:
    """Parse the command line, measure the law, and print it."""
    given, of_run = VERB.parse_with_training(arguments)
    length = [name for name in ("epochs", "steps") if f"training.{name}" in of_run]
    if "budget" in given and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without --{length[0]}.")
    with options.importing():
        from vitkit.jobs.study.scale import propose_recipe, refuse_start

    of_run["data"], start = given["data"], given.pop("start", "")
    refuse_start(given.get("along", "data"), start)
    if start:
        of_run["start.start"] = start
    elif not {"recipe", "task"} & {*given, *of_run}:  # the recipes proposed are of classification
        listener = hushed(console.TerminalListener(), bool(given.get("quiet")))
        given["recipe"] = propose_recipe(given["data"], listener, "model" in of_run)
    given["recipe"] = train.study_base(of_run, given, "the scale lab", "--seeds")
    VERB.run(arguments, given)
