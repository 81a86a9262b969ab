"""`vitkit ablate`: train variants of a recipe with the same seeds, and compare them on the same images."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.options import JsonOption, importing, parse_study, require_first
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training, with_named_task
from vitkit.cli.verb_options import Option
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import AblateOptions, Vary

if TYPE_CHECKING:
    from vitkit.jobs.study.ablate import Ablation


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, AblateOptions):
    """Change a recipe's options one at a time, and see what each is worth: vitkit ablate digits --vary
    position=learned,none.

    All options of vitkit train (vitkit train --help-all) may follow, such as --data, --start or --steps:
    they change the base, and all arms with it. Stopped anywhere, the same command goes on."""

    vary: Vary = field(default_factory=dict)  # by name alone on a command line
    plan: bool = False
    """list the arms, their runs and the time they take, and train nothing."""


def main(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    line = shlex.join(["vitkit", "ablate", *arguments])
    require_first(
        arguments, "Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none."
    )

    def training(_: object) -> Sequence[Option]:
        return describe_training(default=with_named_task(recipe(arguments[0]), arguments))

    command, given = parse_study(Command, arguments, "ablate", training)
    name = str(command.recipe)
    run = study_base(given, name, recipe(name), "an ablation", "--seeds and --rates", command.listener)
    options = AblateOptions(**{**as_arguments(AblateOptions, command), "recipe": run})
    with importing():
        from vitkit.jobs.study.ablate import plan_ablation, run_ablate

    if command.plan:
        beside = ", and as long again for evaluations and reports where runs are short."
        console.print_plan(plan_ablation(options), command.json, beside)
        return
    ablation = run_ablate(options, line)
    console.print_result(ablation, command.json, _print)


def _print(ablation: "Ablation") -> None:
    """Print the table of the arms, the conclusions and the commands that can follow."""
    from vitkit.jobs.study.study import arm_table, conclusions

    table = arm_table(ablation.comparison)
    console.print_lines("")
    console.print_table(table.headings, table.rows)
    console.print_lines("", ablation.design.base, ablation.design.rates, *conclusions(ablation.comparison))
    best = max((ablation.comparison.base, *ablation.comparison.arms), key=lambda arm: arm.mean or 0.0)
    following = [f"open {ablation.folder / 'report.html'} in a browser"]
    if best.scores:  # else every run diverged
        following.append(f"vitkit predict {shlex.quote(str(ablation.folder / best.folder))} IMAGE_OR_FOLDER")
    console.print_next(*following)
