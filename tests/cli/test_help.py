"""The help of every verb: short and whole, in words, without torch, and with examples that can be read."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.verbs import COMMANDS, options_of
from vitkit.cli.help import PAGES, VERBS, WIDTH
from vitkit.cli.verb_options import parse_words, read
from vitkit.cli.verbs import list_options


def pages(verb: str, cli: Cli) -> tuple[str, str]:
    """Return the first page of a verb's help, and the one with every option."""
    return cli([*verb.split(), "--help"]).out, cli([*verb.split(), "--help-all"]).out


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_is_short_or_whole_and_in_words_with_examples_that_can_be_read(verb: str, cli: Cli) -> None:
    """docs/commands.md has its words, tests/golden the layout."""
    page = COMMANDS[verb]
    short, whole = pages(verb, cli)
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
    defaults = {
        "train": "ViT-Ti/16 224,224 100 128 0.001",
        "train --recipe digits": "ViT-64x4x4x128/4 16,16 100 64 0.002",
        "finetune": "",
        "pretrain": "",
    }
    for line, expected in defaults.items():
        short, _ = pages(line, cli)
        assert re.findall(r"\[default:\s+(.*?)\]", short) == expected.split()


def test_no_help_waits_for_torch() -> None:
    code = """
import sys
from vitkit.cli.help import VERBS
from vitkit.cli.main import run
for verb in VERBS:
    assert run(["help", verb]) == 0
    for asking in ("-h", "--help", "--help-all"):
        assert run([verb, asking]) == 0
    assert not {"torch", "numpy", "PIL", "pyarrow", "sklearn", "matplotlib", "jinja2"} & {*sys.modules}, verb
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(vitkit.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=1800, env=environment
    )
    assert done.returncode == 0, done.stderr


def test_every_verb_chooses_what_its_help_shows() -> None:
    assert {verb.split()[0] for verb in PAGES} == {*VERBS}
