"""Run commands and return their screen: the typed line, standard output, standard error, the exit code."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from tests.golden.masks import MASKS, mask
from vitkit.cli.main import run


def screen(
    commands: Iterable[Sequence[str]],
    capsys: pytest.CaptureFixture[str],
    masks: Sequence[tuple[str, str]] = MASKS,
) -> str:
    """Run commands one after the other in the working folder; return all that is seen, masked.

    Standard error stands below a line of its own: between two pipes there is no order.
    """
    parts = []
    capsys.readouterr()
    for arguments in commands:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        parts.append(f"$ {shlex.join(['vitkit', *arguments])}\n{out}")
        parts += [f"--- standard error\n{err}"] if err else []
        parts += [f"--- exit code {code}\n"] if code else []
        parts.append("\n")
    return mask("".join(parts).rstrip("\n") + "\n", Path.cwd(), masks)
