"""`vitkit models`: the models that can be made by name, and how large they are."""

from dataclasses import dataclass

from vitkit.cli import console
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import ModelsOptions
from vitkit.text import format_count


@dataclass(frozen=True, kw_only=True)
class Command(ModelsOptions):
    """List models with their sizes. Other patches, sizes and options can be named too: ViT-96x6x3/4-gap."""


def main(arguments: list[str]) -> None:
    """Parse the command line and print the models."""
    options = parse(Command, arguments, "models")
    with importing():
        from vitkit.jobs.models import measure_models

    console.print_table(
        ("model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image"),
        (
            (model.name, *model.shape, f"{model.parameters:,}", format_count(model.flops))
            for model in measure_models(options)
        ),
    )
    console.print_next(
        "vitkit cost NAME",
        "vitkit train PATH --model NAME",
        "vitkit.create_model(NAME)   (from Python)",
    )
