"""`vitkit scale`: how test error falls with data, steps or size, and what three times more would buy."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitkit.cli import console
from vitkit.cli.checks import require_images
from vitkit.cli.options import JsonOption, importing, option_names, parse_study
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import ScaleOptions
from vitkit.runs.config import Run

if TYPE_CHECKING:
    from vitkit.jobs.study.scale_result import Scale


@dataclass(frozen=True)
class Command(JsonOption, ScaleOptions):
    """Say what three times more images, steps or size would buy, on your images: vitkit scale DATA.

    Points over a factor of 30 are trained and a power law is fitted to their test errors; a point three times
    beyond is predicted, then trained and compared. Stopped anywhere, the same command goes on. Every other
    option is one of vitkit train (vitkit train --help-all), laid over the recipe at all points."""

    recipe: str = ""
    plan: bool = False
    """print the points and the time that they take, and train nothing."""


def main(arguments: list[str]) -> None:
    """Parse the command line, measure the law, and print it."""
    line = shlex.join(["vitkit", "scale", *arguments])
    command, of_training = parse_study(
        Command,
        arguments,
        "scale",
        describe_training,
        "Which images? They stand first: vitkit scale DATA --budget 45m.",
    )
    of_training += ["--data", str(command.data), *(["--start", str(command.start)] if command.start else [])]
    require_images(command.data)
    name = command.recipe
    given = option_names(of_training)
    if not (name or command.start or "--task" in given):  # the recipes proposed are of classification
        with importing():
            from vitkit.jobs.study.scale import propose_recipe

        name = propose_recipe(str(command.data), command.listener, "--model" in given)
    base = recipe(name) if name else Run()
    run = study_base(of_training, name, base, "the scale lab", "--seeds", command.listener)
    length = given & {"--steps", "--epochs"}
    if command.budget is not None and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without {min(length)}.")
    options = ScaleOptions(**{**as_arguments(ScaleOptions, command), "recipe": run, "start": ""})
    with importing():
        from vitkit.jobs.study.scale import describe_plan, plan_scale, run_scale

    if command.plan:
        plan = plan_scale(options)
        if command.json_output:
            points = [{"label": arm.label, "x": x} for x, arm in zip(plan.places, plan.arms, strict=True)]
            console.print_json({"points": points, "steps": plan.steps, "seconds": plan.seconds})
            return
        console.print_lines(*describe_plan(plan, options))
        console.print_next("the same command without --plan trains them")
        return
    result = run_scale(options, line)
    console.print_result(result, command.json_output, _print)


def _print(result: "Scale") -> None:
    """Print the points, the conclusions and the commands that can follow."""
    from vitkit.jobs.study.scale_result import conclusions, point_table, remarks

    table = point_table(result)
    console.print_lines("")
    console.print_table(table.headings, table.rows, text=(0, -1))
    console.print_lines("", *conclusions(result), *remarks(result))
    console.print_next(
        f"open {result.folder / 'report.html'} in a browser",
        f"vitkit predict {shlex.quote(str(result.folder / result.held_out.folder))} IMAGE_OR_FOLDER",
    )
