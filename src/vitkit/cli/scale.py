"""`vitkit scale`: how test error falls with data, steps or size, and what ten times more would buy."""

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.markup import escape
from rich.table import Table

from vitkit.cli import console
from vitkit.cli.options import CONSTRUCTORS, importing
from vitkit.cli.train import parse_line
from vitkit.errors import VitkitError
from vitkit.jobs.options import as_arguments
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.scale_options import ScaleOptions
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
    command, rest = _parse(arguments)
    options = ScaleOptions(**as_arguments(ScaleOptions, command))
    default = recipe(command.recipe) if command.recipe else Run()
    if options.start:
        with importing():
            from vitkit.cli.console import download
            from vitkit.jobs.study.scale import base_run

        download(str(options.start))
        default = base_run(options)
    asked = parse_line([*rest, "--data", str(options.data)], default, "train", SeriesOptions())
    if asked.series.is_series:
        raise VitkitError(
            "A point is no series of its own: give --seeds, and leave --sweep and the like out."
        )
    length = [option for option in ("--steps", "--epochs", "--minutes") if option in asked.given]
    if options.budget is not None and length:
        raise VitkitError(f"--budget chooses the number of steps: give it without {length[0]}.")
    options = replace(options, recipe=asked.run, start="")
    with importing():
        from vitkit.jobs.study.scale import describe_plan, plan_scale, run_scale

    if command.plan:
        console.out.print(
            *describe_plan(plan_scale(options), options), sep="\n", markup=False, soft_wrap=True
        )
        return
    result = run_scale(options)
    if command.json_output:
        console.print_json(result.to_json())
        return
    _print(result)


def _parse(arguments: list[str]) -> tuple[Command, list[str]]:
    """Read the options of the scale lab, and leave those of training."""
    parsed: tuple[Command, list[str]] = tyro.cli(
        Command,
        args=arguments,
        prog="vitkit scale",
        registry=CONSTRUCTORS,
        config=(tyro.conf.PositionalRequiredArgs, tyro.conf.HelptextFromCommentsOff),
        return_unknown_args=True,
    )
    return parsed


def _print(result: "Scale") -> None:
    """Print the points, what came out, and what to do next."""
    from vitkit.jobs.study.scale_result import conclusions, point_table, remarks

    content = point_table(result)
    table = Table(*map(escape, content.headings), box=None)
    for row in content.rows:
        table.add_row(*(escape(cell if isinstance(cell, str) else cell.text) for cell in row))
    console.out.print(table)
    console.out.print(*conclusions(result), *remarks(result), sep="\n", markup=False)
    folder = shlex.quote(result.folder)
    console.out.print(f"Next:    open {folder}/report.html in a browser", markup=False, soft_wrap=True)
    best = f"{folder}/{result.held_out.folder}"
    console.out.print(
        f"         vitkit predict {best} IMAGE_OR_FOLDER   (the model of {result.held_out.label})",
        markup=False,
        soft_wrap=True,
    )
