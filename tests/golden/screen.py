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

    Standard error stands below a line of its own, where there is anything else: between two pipes there is no
    order.
    """
    parts = []
    capsys.readouterr()
    for arguments in commands:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        remarks = [f"exit code {code}"] * bool(code) + ["standard error alone"] * bool(err and not out)
        remark = f"   ({', '.join(remarks)})" if remarks else ""
        parts += [f"$ {shlex.join(['vitkit', *arguments])}{remark}\n{out}"]
        parts += ["--- standard error\n"] * bool(out and err) + [err]
    return mask("".join(parts), Path.cwd(), masks)
