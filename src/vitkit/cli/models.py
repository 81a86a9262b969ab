"""`vitkit models`: the models that can be made by name, and how large they are."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from vitkit.cli import console
from vitkit.cli.help import HelpPage
from vitkit.cli.options import importing, parse
from vitkit.jobs.options import ModelsOptions
from vitkit.text import format_count

if TYPE_CHECKING:
    from vitkit.jobs.models import ModelSize


@dataclass(frozen=True)
class Command(ModelsOptions):
    """List models with their sizes. Other patches, sizes and options can be named too: ViT-96x6x3/4-gap."""


HELP = HelpPage(
    "[PATTERN...] [OPTIONS]",
    (
        "--image-size",
        "--num-classes",
    ),
    (
        "vitkit models 'ViT-B*'",
        "vitkit models ViT-Ti/16 --image-size 384 --num-classes 10",
    ),
)


def main(arguments: list[str]) -> None:
    """Parse the command line and print the models."""
    options: Command = parse(Command, arguments, "models", HELP)
    with importing():
        from vitkit.jobs.models import measure_models

    print_models(measure_models(options))


def print_models(models: "list[ModelSize]") -> None:
    """Print models as a table."""
    table = Table("model", "layers", "width", "heads", "tokens", "parameters", "FLOPs per image", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for model in models:
        table.add_row(model.name, *model.shape, f"{model.parameters:,}", format_count(model.flops))
    console.out.print(table)
    console.out.print(
        "\nNext: vitkit cost NAME\n      vitkit train --model NAME --data PATH\n      "
        "vitkit.create_model(NAME)   (from Python)"
    )
