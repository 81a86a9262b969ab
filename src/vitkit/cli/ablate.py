"""`vitkit ablate`: train variants of a recipe with the same seeds, and compare them on the same images."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from vitkit.cli import console
from vitkit.cli.options import JsonOption, importing, parse_study
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training
from vitkit.jobs.functions import read_field_texts
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import AblateOptions
from vitkit.text import format_duration

if TYPE_CHECKING:
    from vitkit.jobs.study.ablate import Ablation, Expected

TEXTS = read_field_texts(AblateOptions)


@dataclass(frozen=True)
class Command(JsonOption, AblateOptions):
    """Change a recipe's options one at a time, and see what each is worth: vitkit ablate digits --vary
    position=learned,none.

    All options of vitkit train (vitkit train --help-all) may follow, such as --data, --start or --steps:
    they change the base, and all arms with it. Stopped anywhere, the same command goes on."""

    # On a command line both are texts: a run is made of the recipe and the options of training.
    recipe: Annotated[str, tyro.conf.arg(help=TEXTS["recipe"])]
    vary: Annotated[tuple[str, ...], tyro.conf.arg(help=TEXTS["vary"]), tyro.conf.UseAppendAction] = ()
    plan: bool = False
    """list the arms, their runs and the time they take, and train nothing."""


def main(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    line = shlex.join(["vitkit", "ablate", *arguments])
    question = "Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none."
    command, of_training = parse_study(Command, arguments, "ablate", describe_training, question)
    base = recipe(command.recipe)
    run = study_base(
        of_training, command.recipe, base, "an ablation", "--seeds and --rates", command.listener
    )
    options = AblateOptions(**{**as_arguments(AblateOptions, command), "recipe": run})
    with importing():
        from vitkit.jobs.study.ablate import plan_ablation, run_ablate

    if command.plan:
        _print_plan(plan_ablation(options), command.json_output)
        return
    ablation = run_ablate(options, line)
    console.print_result(ablation, command.json_output, _print)


def _print_plan(expected: "list[Expected]", as_json: bool) -> None:
    """Print the arms with their runs and the time they take."""
    from vitkit.config import to_json

    seconds = sum(arm.seconds for arm in expected)
    if as_json:
        console.print_json({"arms": [to_json(arm) for arm in expected], "seconds": seconds})
        return
    arms = [
        (
            arm.label,
            ", ".join(f"{rate:g}" for rate in arm.rates) or "its own",
            str(arm.runs),
            format_duration(arm.seconds),
        )
        for arm in expected
    ]
    console.print_plan(
        ("arm", "rates tried", "runs", "time"),
        arms,
        sum(arm.runs for arm in expected),
        seconds,
        ", and as long again for evaluations and reports where runs are short.",
    )


def _print(ablation: "Ablation") -> None:
    """Print the table of the arms, the conclusions and the commands that can follow."""
    from vitkit.jobs.study.comparison import arm_table, conclusions

    table = arm_table(ablation.comparison, compact=True)
    console.print_lines("")
    console.print_table(table.headings, table.rows)
    console.print_lines("", ablation.design.base, ablation.design.rates, *conclusions(ablation.comparison))
    best = max((ablation.comparison.base, *ablation.comparison.arms), key=lambda arm: arm.mean or 0.0)
    following = [f"open {ablation.folder / 'report.html'} in a browser"]
    if best.scores:  # else every run diverged
        following.append(f"vitkit predict {shlex.quote(str(ablation.folder / best.folder))} IMAGE_OR_FOLDER")
    console.print_next(*following)
