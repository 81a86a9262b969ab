"""`vitkit completion`: a script by which a shell completes verbs, options and their choices."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Literal

from vitkit.cli import help, train, verb_options, verbs
from vitkit.cli.help import ASKING
from vitkit.cli.options import Verb, home_of

OF_BASH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit"""
"""The lines by which zsh understands the script of bash."""


def write_script(shell: Literal["bash", "zsh"]) -> str:
    """Print a script by which a shell completes verbs, options and their choices.

    It knows the options of this version: write it anew after an update.

    Args:
        shell: the shell: bash or zsh.
    """
    before = f"{OF_BASH}\n" if shell == "zsh" else ""
    return before + _bash({verb: list_options(verb) for verb in help.VERBS})


def _complete(arguments: list[str]) -> None:
    """Parse the command line, and print the script."""
    print(write_script(**COMPLETION.parse(arguments)), end="")


def list_options(verb: str) -> tuple[verb_options.Option, ...]:
    """List the options of a verb, with its options that are read before the parser."""
    if verb in train.FIRST:
        options = train.describe_training(verb)
    else:
        parts = (verbs.CHECK, verbs.SHOW) if verb == "data" else (home_of(verb),)
        options = tuple(chain(*((*part.options, *part.of_training({}, [])) for part in parts)))
    return tuple({option.name: option for option in options if not option.is_positional}.values())


def _bash(by_verb: Mapping[str, Sequence[verb_options.Option]]) -> str:
    """Write the script for bash: a function of the verb, the word at the cursor and the word before it."""
    cases = "\n".join(
        f'        {verb}) words="{" ".join(chain(*(option.names for option in options), ASKING[1:]))}" ;;'
        for verb, options in by_verb.items()
    )
    choices = "\n".join(
        f'    "{verb} {option.name}") words="{" ".join(option.choices)}" ;;'
        for verb, options in by_verb.items()
        for option in options
        if option.choices
    )
    return f"""\
_vitkit() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local verb="${{COMP_WORDS[1]}}" words=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join([*by_verb, *ASKING[1:2]])}" -- "$word"))
    return
  fi
  case "$verb $before" in
{choices}
  esac
  if [ -z "$words" ]; then
    case "$word" in
      -*) case "$verb" in
{cases}
      esac ;;
    esac
  fi
  if [ "$verb" = data ] && [ "$COMP_CWORD" -eq 2 ]; then words="check show"; fi
  if [ -n "$words" ]; then COMPREPLY=($(compgen -W "$words" -- "$word")); fi
}}
complete -o default -F _vitkit vitkit
"""


COMPLETION = Verb("completion", "vitkit.cli.completion", "write_script", main=_complete)
