"""The scripts of completion: what a shell offers after the words that stand on the line."""

import shlex
import subprocess

from tests.helpers.cli import Cli
from vitkit.cli.help import VERBS
from vitkit.cli.verbs import list_options


def offered(script: str, *arguments: str) -> list[str]:
    """Return what bash offers for the last of some arguments."""
    line = f"{script}\nCOMP_WORDS=(vitkit {shlex.join(arguments)}); COMP_CWORD={len(arguments)}; _vitkit"
    show = 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{line}; {show}"], capture_output=True, text=True, timeout=60)
    assert not done.stderr
    return done.stdout.split()


def test_bash_completes_verbs_options_and_choices_and_zsh_reads_its_script(cli: Cli) -> None:
    script, of_zsh = (cli(["completion", shell]).out for shell in ("bash", "zsh"))
    assert of_zsh.endswith(script) and "bashcompinit" in of_zsh.splitlines()[1]
    for line, expected in (
        ("fine", ["finetune"]),
        ("data ", ["check", "show"]),
        ("data show x --vers", ["--versions"]),
        ("train --data x --epo", ["--epochs"]),
        ("train --no-fl", ["--no-flip"]),
        ("train --loss ", ["softmax", "sigmoid"]),
        ("ablate digits --fixed", ["--fixed-rate"]),
        ("predict model ", []),  # then bash offers files
    ):
        assert offered(script, *line.split(" ")) == expected, line
    assert offered(script, "") == [*VERBS, "--help"]
    for verb in VERBS:
        names = [name for option in list_options(verb) for name in option.names]
        command = ["data", "check"] if verb == "data" else [verb]
        assert set(names) | {"--help", "--help-all"} == set(offered(script, *command, "-"))
