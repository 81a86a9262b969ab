"""`vitkit recipes`: named configurations of training and what they are for."""

from vitkit.cli import console
from vitkit.cli.options import parse_given
from vitkit.cli.verb_options import Option
from vitkit.jobs.recipes import RECIPES, describe_recipe, recipe

OPTIONS: tuple[Option, ...] = ()


def main(arguments: list[str]) -> None:
    """List the recipes: named run configurations, every option of which can be changed on the command
    line."""
    parse_given(main, OPTIONS, arguments, "recipes")
    rows = []
    for name in RECIPES:
        run = recipe(name)
        height, _ = run.preprocessing.image_size
        training = run.training
        length = f"{training.epochs:g} epochs" if training.steps is None else f"{training.steps:,} steps"
        model = run.model or "START's"
        rows.append((name, model, str(height), length, str(training.batch_size), describe_recipe(name)))
    console.print_table(("recipe", "model", "pixels", "length", "batch", ""), rows, text=(0, 1, 5))
    console.print_next("vitkit train PATH --recipe NAME", "vitkit finetune START PATH --recipe NAME")
