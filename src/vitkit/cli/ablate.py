"""`vitkit ablate`: train variants of a recipe with the same seeds, and compare them on the same images."""

import shlex
from collections.abc import Sequence

from vitkit.cli import console
from vitkit.cli.options import Verb, call, importing, in_options, require_first
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training, with_named_task
from vitkit.cli.verb_options import JSON, PLAN, Option
from vitkit.jobs.recipes import recipe
from vitkit.jobs.study.options import StudyOptions

JOB = ("ablate", "vitkit.jobs.study.ablate", "ablate")
VERB = Verb(*JOB, *Verb(*JOB).only("vary"), PLAN, JSON, without=("vary",))  # by name, beside the recipe


def main(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    require_first(
        arguments, "Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none."
    )

    def training(_: object) -> Sequence[Option]:
        return describe_training(default=with_named_task(recipe(arguments[0]), arguments))

    given, of_run = VERB.parse_with_training(arguments, training)
    given["recipe"] = study_base(of_run, given, recipe(given["recipe"]), "an ablation", "--seeds and --rates")
    as_json = bool(given.get("json"))
    if not given.get("plan"):
        ablation = VERB.call(given, command=shlex.join(["vitkit", "ablate", *arguments]))
        console.print_result(ablation, as_json)
        return
    with importing():
        from vitkit.jobs.study.ablate import make_arms, plan_ablation

    design = call(make_arms, given, VERB.options)
    with in_options(VERB.options, given):
        planned = plan_ablation(design.arms, call(StudyOptions, given, VERB.options))
    beside = ", and as long again for evaluations and reports where runs are short."
    console.print_plan(planned, as_json, beside)
