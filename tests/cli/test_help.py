"""The help of every verb: short and whole, in words, without torch, and with examples that can be read."""

import re
import shlex

import pytest

from tests.helpers.cli import Cli
from tests.helpers.verbs import COMMANDS, options_of
from vitkit.cli.help import WIDTH
from vitkit.cli.verb_options import parse_words, read
from vitkit.cli.verbs import list_options


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_is_short_or_whole_and_in_words_with_examples_that_can_be_read(verb: str, cli: Cli) -> None:
    """docs/commands.md has its words, tests/golden the layout."""
    page = COMMANDS[verb]
    short, whole = (cli([*verb.split(), page]).out for page in ("--help", "--help-all"))
    options = options_of(verb)
    for text in (short, whole):
        assert max(len(line) for line in text.splitlines()) <= WIDTH
        # No types of the parser, and no empty defaults.
        assert not re.search(r"\{None\}|\bFLOAT\b|\bINT\b|\bSTR\b|default: \]|\(default|default: None", text)
    assert [option.name for option in options if not option.text] == []
    named = [option.name for option in options if not option.is_positional]
    assert sorted(re.findall(r"^  (--[\w.-]+)", whole, re.MULTILINE)) == sorted(named)
    rest = [name for name in named if name not in ("--quiet", "--csv")]
    # The first ones, and the last one of more than ten, which is --json where there is one.
    chosen = page.options.split() or (named if len(named) <= 10 else [*rest[:9], *rest[9:][-1:]])
    assert re.findall(r"^  (--[\w.-]+)", short, re.MULTILINE) == chosen
    for example in page.examples(verb):
        _, *arguments = shlex.split(example.split(" > ")[0], comments=True)
        name = arguments[0] if verb != "data check" else " ".join(arguments[:2])
        offered = list_options(name.split()[0]) + tuple(o for o in options_of(name) if o.is_positional)
        if arguments[-1] != "--help" and arguments != ["reproduce"]:
            parse_words(name, read(arguments[len(name.split()) :], offered), offered, str)


def test_the_defaults_of_help_are_those_of_the_recipe_where_they_do_not_follow_from_images(cli: Cli) -> None:
    for line, expected in (
        ("train --help", "ViT-Ti/16 224,224 100 128 0.001"),
        ("train --recipe digits --help", "ViT-64x4x4x128/4 16,16 100 64 0.002"),
        ("finetune --help", ""),
        ("pretrain --help", ""),
    ):
        assert re.findall(r"\[default:\s+(.*?)\]", cli(line.split()).out) == expected.split()
