"""`vitkit ablate`: train variants of a recipe with the same seeds, and compare them on the same images."""

import shlex
from collections.abc import Sequence

from vitkit.cli import console
from vitkit.cli.options import Verb, require_first
from vitkit.cli.train import study_base
from vitkit.cli.training_options import describe_training, with_named_task
from vitkit.cli.verb_options import JSON, Option
from vitkit.jobs.recipes import recipe

JOB = ("ablate", "vitkit.jobs.study.ablate", "ablate")
VERB = Verb(*JOB, *Verb(*JOB).only("vary"), JSON, without=("vary",))  # by name, beside the recipe


def main(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    require_first(
        arguments, "Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none."
    )

    def training(_: object) -> Sequence[Option]:
        return describe_training(default=with_named_task(recipe(arguments[0]), arguments))

    given, of_run = VERB.parse_with_training(arguments, training)
    given["recipe"] = study_base(of_run, given, recipe(given["recipe"]), "an ablation", "--seeds and --rates")
    ablation = VERB.call(given, command=shlex.join(["vitkit", "ablate", *arguments]))
    console.print_result(ablation, bool(given.get("json")))
