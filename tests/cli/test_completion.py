"""The scripts of completion: what a shell offers after the words that stand on the line."""

import shlex
import subprocess
from dataclasses import replace

import pytest

from vitkit.cli import completion
from vitkit.cli.completion import list_options
from vitkit.cli.main import VERBS, run


@pytest.fixture(scope="module")
def scripts() -> dict[str, str]:
    """The script of each shell."""
    written = {}
    for shell in ("bash", "zsh", "fish"):
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
    done = subprocess.run(
        ["bash", "-c", f"{line}; {show}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
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
    assert offered(script, "vitkit", "predict", "model", "") == []  # then bash offers files
    for verb, (_, module) in VERBS.items():
        names = [name for option in list_options(verb, module) for name in option.names]
        command = ["data", "check"] if verb == "data" else [verb]
        assert set(names) | {"--help", "--help-all"} == set(offered(script, "vitkit", *command, "-"))


def test_zsh_reads_the_script_of_bash(scripts: dict[str, str]) -> None:
    assert scripts["zsh"].endswith(scripts["bash"])
    assert "bashcompinit" in scripts["zsh"].splitlines()[1]


def test_fish_gets_every_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'a "word", $HOME and a \\ in it'
    option = replace(list_options("train", VERBS["train"][1])[0], text=text)
    monkeypatch.setattr(completion, "list_options", lambda verb, module: (option,))
    lines: list[str] = []
    monkeypatch.setattr("builtins.print", lambda text, **_: lines.extend(text.splitlines()))
    assert run(["completion", "fish"]) == 0
    (line,) = (line for line in lines if "seen_subcommand_from train'" in line)
    assert line.endswith(r' -d "a \"word\", \$HOME and a \\ in it"')


def test_fish_has_a_line_for_each_option(scripts: dict[str, str]) -> None:
    lines = [shlex.split(line) for line in scripts["fish"].splitlines()]
    assert all(command[:3] == ["complete", "-c", "vitkit"] for command in lines)
    for verb, (summary, module) in VERBS.items():
        assert [command for command in lines if command[-4:] == ["-a", verb, "-d", summary]]
        own = [command for command in lines if command[4] == f"__fish_seen_subcommand_from {verb}"]
        assert {command[6] for command in own} == {option.name[2:] for option in list_options(verb, module)}
        assert all(command[5] == "-l" and command[-2] == "-d" and command[-1] for command in own)
