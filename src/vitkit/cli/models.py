"""`vitkit models`: the models that can be made by name, and how large they are."""

from vitkit.cli import console
from vitkit.cli.options import Verb
from vitkit.text import format_count

VERB = Verb("models", "vitkit.jobs.models", "measure_models")


def main(arguments: list[str]) -> None:
    """Parse the command line and print the models."""
    measured = VERB.call(VERB.parse(arguments))
    console.print_table(
        ("model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image"),
        (
            (model.name, *model.shape, f"{model.parameters:,}", format_count(model.flops))
            for model in measured
        ),
    )
    console.print_next(
        "vitkit cost NAME",
        "vitkit train PATH --model NAME",
        "vitkit.create_model(NAME)   (from Python)",
    )
