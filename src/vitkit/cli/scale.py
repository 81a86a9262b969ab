"""`vitkit scale`: how test error falls with data, steps or size, and what three times more would buy."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitkit.cli import console
from vitkit.cli.checks import require_images
from vitkit.cli.options import JsonOption, importing, parse_study, require_first
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training, with_named_task
from vitkit.cli.verb_options import Option
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import ScaleOptions
from vitkit.runs.config import Run

if TYPE_CHECKING:
    from vitkit.jobs.study.scale import Scale


@dataclass(frozen=True, kw_only=True)
class Command(JsonOption, ScaleOptions):
    """Say what three times more images, steps or size would buy, on your images: vitkit scale DATA.

    Points over a factor of 30 are trained and a power law is fitted to their test errors; a point three times
    beyond is predicted, then trained and compared. Stopped anywhere, the same command goes on. Every other
    option is one of vitkit train (vitkit train --help-all), laid over the recipe at all points."""

    plan: bool = False
    """print the points and the time that they take, and train nothing."""


def main(arguments: list[str]) -> None:
    """Parse the command line, measure the law, and print it."""
    line = shlex.join(["vitkit", "scale", *arguments])

    def training(own: Mapping[str, Any]) -> Sequence[Option]:
        base = recipe(own["recipe"]) if "recipe" in own else Run()
        return describe_training(default=with_named_task(base, arguments))

    require_first(arguments, "Which images? They stand first: vitkit scale DATA --budget 45m.")
    command, given = parse_study(Command, arguments, "scale", training)
    given |= {"data": str(command.data)} | ({"start.start": str(command.start)} if command.start else {})
    require_images(command.data)
    name = str(command.recipe)
    if not (name or command.start or "task" in given):  # the recipes proposed are of classification
        with importing():
            from vitkit.jobs.study.scale import propose_recipe

        name = propose_recipe(str(command.data), command.listener, "model" in given)
    base = recipe(name) if name else Run()
    run = study_base(given, name, base, "the scale lab", "--seeds", command.listener)
    length = [name for name in ("epochs", "steps") if f"training.{name}" in given]
    if command.budget is not None and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without --{length[0]}.")
    options = ScaleOptions(**{**as_arguments(ScaleOptions, command), "recipe": run, "start": ""})
    with importing():
        from vitkit.jobs.study.scale import describe_plan, plan_scale, run_scale

    if command.plan:
        plan = plan_scale(options)
        if command.json:
            points = [{"label": arm.label, "x": x} for x, arm in zip(plan.places, plan.arms, strict=True)]
            console.print_json({"points": points, "steps": plan.steps, "seconds": plan.seconds})
            return
        console.print_lines(*describe_plan(plan, options))
        console.print_next("the same command without --plan trains them")
        return
    result = run_scale(options, line)
    console.print_result(result, command.json, _print)


def _print(result: "Scale") -> None:
    """Print the points, the conclusions and the commands that can follow."""
    from vitkit.jobs.study.scale import conclusions, point_table, remarks

    table = point_table(result)
    console.print_lines("")
    console.print_table(table.headings, table.rows, text=(0, -1))
    console.print_lines("", *conclusions(result), *remarks(result))
    console.print_next(
        f"open {result.folder / 'report.html'} in a browser",
        f"vitkit predict {shlex.quote(str(result.folder / result.held_out.folder))} IMAGE_OR_FOLDER",
    )
