"""`vitkit scale`: how test error falls with data, steps or size, and what ten times more would buy."""

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from vitkit.cli import console
from vitkit.cli.options import importing, parse_study
from vitkit.cli.train import lay_out, parse_line, suited
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import ScaleOptions
from vitkit.runs.config import Run
from vitkit.runs.series_options import SeriesOptions

if TYPE_CHECKING:
    from vitkit.jobs.study.scale_result import Scale


@dataclass(frozen=True)
class Command(ScaleOptions):
    """Say what ten times more images, steps or size would buy, on your images: vitkit scale DATA.

    Points over a factor of 30 are trained and a power law is fitted to their test errors; a point three times
    beyond is predicted, then trained and compared. Stopped anywhere, the same command goes on. Every other
    option is one of vitkit train (vitkit train --help), laid over the recipe at all points."""

    recipe: str = ""
    plan: bool = False
    """print the points and the time that they take, and train nothing."""
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False
    """print all numbers as JSON."""


def main(arguments: list[str]) -> None:
    """Parse the command line, measure the law, and print what came out."""
    line = shlex.join(["vitkit", "scale", *arguments])
    if arguments and arguments[0].startswith("-") and arguments[0] not in ("-h", "--help"):
        raise VitkitError("Which images? They stand first: vitkit scale DATA --budget 45m.")
    command, of_training = parse_study(Command, arguments, "scale")
    run = _base(command, of_training)
    options = ScaleOptions(**{**as_arguments(ScaleOptions, command), "recipe": run, "start": ""})
    with importing():
        from vitkit.jobs.study.scale import complete_scale, describe_plan, plan_scale

    if command.plan:
        plan = plan_scale(options)
        if command.json_output:
            points = [{"label": arm.label, "x": x} for x, arm in zip(plan.places, plan.arms, strict=True)]
            console.print_json({"points": points, "steps": plan.steps, "seconds": plan.seconds})
            return
        console.out.print(*describe_plan(plan, options), sep="\n", markup=False, soft_wrap=True)
        console.out.print("Next: the same command without --plan trains them")
        return
    result = complete_scale(options, line)
    if command.json_output:
        console.print_json(result.to_json())
    else:
        _print(result)


def _base(command: Command, arguments: list[str]) -> Run:
    """Make the run that the points differ from: a recipe with options of training over it, that suit its
    start if it has one.

    Raises:
        VitkitError: an option is not one of the scale lab.
    """
    given = ["--data", str(command.data), *(["--start", str(command.start)] if command.start else [])]
    default = recipe(command.recipe) if command.recipe else Run()
    parsed = parse_line([*arguments, *given], default, "train", SeriesOptions())
    if parsed.series != SeriesOptions() or {"--processes", "--from-scratch"} & parsed.given:
        raise VitkitError(
            "The scale lab chooses its runs by itself, one after another in one process: give --seeds, "
            "without --runs, --sweep, --cross-validate, --processes or --from-scratch."
        )
    length = [option for option in ("--steps", "--epochs") if option in parsed.given]
    if command.budget is not None and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without {length[0]}.")
    if not command.start:
        return parsed.run
    with importing():
        from vitkit.runs.plan import Request

    # What is left out suits the start and the data, as in vitkit finetune.
    return parsed.over(suited(parsed, command.recipe, Request(), command.listener)).run


def _print(result: "Scale") -> None:
    """Print the points, what came out, and what can follow."""
    from vitkit.jobs.study.scale_result import conclusions, point_table, remarks

    console.out.print()
    console.out.print(lay_out(point_table(result)))
    sentences = [*conclusions(result), *remarks(result)]
    console.out.print("", *sentences, sep="\n", markup=False, soft_wrap=True)
    held_out = result.folder / result.held_out.folder
    lines = [
        f"Next:    open {result.folder / 'report.html'} in a browser",
        f"         vitkit predict {shlex.quote(str(held_out))} IMAGE_OR_FOLDER",
    ]
    console.out.print("", *lines, sep="\n", markup=False, soft_wrap=True)
