"""`vitkit models`: the models that can be made by name, and how large they are."""

from vitkit.cli import console
from vitkit.cli.options import call, importing, parse_given
from vitkit.cli.verb_options import describe
from vitkit.jobs.functions import read_signature
from vitkit.text import format_count

SIGNATURE = read_signature("vitkit.jobs.models", "measure_models")
OPTIONS = describe(SIGNATURE)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the models."""
    given = parse_given(SIGNATURE, OPTIONS, arguments, "models")
    with importing():
        from vitkit.jobs.models import measure_models

    console.print_table(
        ("model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image"),
        (
            (model.name, *model.shape, f"{model.parameters:,}", format_count(model.flops))
            for model in call(measure_models, given, OPTIONS)
        ),
    )
    console.print_next(
        "vitkit cost NAME",
        "vitkit train PATH --model NAME",
        "vitkit.create_model(NAME)   (from Python)",
    )
