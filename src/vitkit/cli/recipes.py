"""`vitkit recipes`: named runs and what they are for."""

from dataclasses import dataclass

from rich.table import Table

from vitkit.cli import console
from vitkit.cli.help import HelpPage
from vitkit.cli.options import parse
from vitkit.jobs.recipes import RECIPES, describe_recipe, recipe


@dataclass(frozen=True)
class Command:
    """List the recipes: named run configurations, every option of which can be changed on the command
    line."""


HELP = HelpPage("", (), ("vitkit recipes", "vitkit train --recipe digits --help  # its values"))


def main(arguments: list[str]) -> None:
    """Parse the command line, which has no options, and print the recipes."""
    parse(Command, arguments, "recipes", HELP)
    print_recipes(list(RECIPES))


def print_recipes(names: list[str]) -> None:
    """Print recipes as a table."""
    table = Table("recipe", "model", "pixels", "length", "batch", "", box=None)
    for name in names:
        run = recipe(name)
        height, _ = run.preprocessing.image_size
        training = run.training
        length = f"{training.epochs:g} epochs" if training.steps is None else f"{training.steps:,} steps"
        table.add_row(
            name, run.model or "START's", str(height), length, str(training.batch_size), describe_recipe(name)
        )
    console.out.print(table)
    console.out.print(
        "\nNext: vitkit train --recipe NAME --data PATH"
        "\n      vitkit finetune START --recipe NAME --data PATH"
    )
