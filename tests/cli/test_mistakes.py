"""A command line that is wrong is told in one style, with what was probably meant."""

from tests.helpers.verbs import COMMANDS
from vitkit.cli.mistakes import MEANT, OTHER_NAMES
from vitkit.cli.verb_options import describe


def test_the_words_of_others_lead_to_options_that_are_there() -> None:
    options = [option for command, page in COMMANDS.values() for option in (*describe(command), *page.before)]
    there = {name for option in options for name in option.names}
    assert set(OTHER_NAMES) <= there
    others = [name for names in OTHER_NAMES.values() for name in names]
    assert sorted(others) == sorted(set(others))
    # An option of ours by that name goes first, where the verb has it.
    assert not {f"--{name}" for name in MEANT} & {"--data", "--start", "--model"}
