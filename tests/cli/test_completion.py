"""The scripts of completion: what a shell offers after the words that stand on the line."""

import shlex
import subprocess

import pytest

from vitkit.cli.help import VERBS
from vitkit.cli.main import run
from vitkit.cli.verbs import list_options


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """The script of each shell."""
    written = {}
    for shell in ("bash", "zsh"):
        with pytest.MonkeyPatch.context() as patched:
            lines: list[str] = []
            patched.setattr("builtins.print", lambda text, lines=lines, **_: lines.append(text))
            assert run(["completion", shell]) == 0
            written[shell] = "\n".join(lines)
    return written


def offered(script: str, *arguments: str) -> list[str]:
    """Return what bash offers for the last of some arguments."""
    line = f"{script}\nCOMP_WORDS=({shlex.join(arguments)}); COMP_CWORD={len(arguments) - 1}; _vitkit"
    show = 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{line}; {show}"], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_verbs_options_and_choices(scripts: dict[str, str]) -> None:
    script = scripts["bash"]
    checked = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0 and not checked.stderr
    assert offered(script, "vitkit", "") == [*VERBS, "--help"]
    assert offered(script, "vitkit", "fine") == ["finetune"]
    assert offered(script, "vitkit", "data", "") == ["check", "show"]
    assert offered(script, "vitkit", "data", "show", "x", "--vers") == ["--versions"]
    assert offered(script, "vitkit", "train", "--data", "x", "--epo") == ["--epochs"]
    assert offered(script, "vitkit", "train", "--recip") == ["--recipe"]
    assert offered(script, "vitkit", "train", "--no-fl") == ["--no-flip"]
    assert offered(script, "vitkit", "train", "--loss", "") == ["softmax", "sigmoid"]
    assert offered(script, "vitkit", "pretrain", "x", "--mask") == ["--mask-fraction"]
    assert offered(script, "vitkit", "ablate", "digits", "--fixed") == ["--fixed-rate"]
    assert offered(script, "vitkit", "ablate", "digits", "--epo") == ["--epochs"]
    assert offered(script, "vitkit", "data", "show", "x", "--crop-are") == ["--crop-area"]
    assert offered(script, "vitkit", "predict", "model", "") == []  # then bash offers files
    for verb in VERBS:
        names = [name for option in list_options(verb) for name in option.names]
        command = ["data", "check"] if verb == "data" else [verb]
        assert set(names) | {"--help", "--help-all"} == set(offered(script, "vitkit", *command, "-"))


def test_zsh_reads_the_script_of_bash(scripts: dict[str, str]) -> None:
    assert scripts["zsh"].endswith(scripts["bash"])
    assert "bashcompinit" in scripts["zsh"].splitlines()[1]
