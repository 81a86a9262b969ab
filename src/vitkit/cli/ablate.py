"""`vitkit ablate`: train variants of a recipe with the same seeds, and compare them on the same images."""

from collections.abc import Sequence

from vitkit.cli.help import ASKING
from vitkit.cli.options import Verb
from vitkit.cli.train import describe_study, study_base
from vitkit.cli.verb_options import JSON, Option
from vitkit.errors import VitkitError


def _describe(_: object, line: Sequence[str]) -> tuple[Option, ...]:
    return describe_study({"recipe": "".join(line[:1])}, line)


VERB = Verb("ablate", "vitkit.jobs.study.ablate", "ablate", JSON, of_training=_describe)


def main(arguments: list[str]) -> None:
    """Parse the command line, train the arms, and print their table and the conclusions."""
    # The recipe decides which options there are.
    if not {*ASKING} & {*arguments} and (not arguments or arguments[0][:1] in ("", "-")):
        raise VitkitError("Which recipe? It stands first: vitkit ablate RECIPE --vary position=learned,none.")

    given, of_run = VERB.parse_with_training(arguments)
    given["recipe"] = study_base(of_run, given, "an ablation", "--seeds and --rates")
    VERB.run(arguments, given)
