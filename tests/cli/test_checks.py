"""Every verb refuses a wrong command line before it imports torch and the like."""

import os
import subprocess
import sys
from pathlib import Path

import vitkit
from vitkit.cli.help import VERBS

WRONG = {
    "advise": "nowhere; digits nowhere",
    "train": "--data nowhere;; --data digits --model ViT-Q/16; --data digits --out file; --resume nowhere; "
    "--data digits --epochs x; --recipe fotos",
    "finetune": "nowhere --data digits; file --data nowhere",
    "pretrain": "nowhere; digits --then nowhere",
    "evaluate": "nowhere; file --data nowhere",
    "fewshot": "nowhere --data digits; file --data nowhere",
    "ablate": "nowhere --vary pool=max; digits --vary pool=max --data nowhere; digits --vary pool=max --ep 3",
    "reproduce": "table8 --data nowhere; fig7 --start nowhere; table80",
    "vtab": "nowhere --root .; file --root nowhere",
    "scale": "nowhere; digits --start nowhere",
    "predict": "nowhere a.png",
    "embed": "file nowhere; nowhere digits",
    "extend": "nowhere digits; file nowhere; file --data nowhere",
    "report": "nowhere",
    "inspect": "nowhere",
    "data": "check nowhere; show nowhere; show digits --start nowhere",
    "runs": "nowhere; --jsn",
    "compare": "nowhere file; file file --data nowhere",
    "convert": "nowhere out; file file; file out --to tinm",
    "export": "nowhere out; file file",
    "serve": "nowhere; file",
    "card": "nowhere",
    "cost": "ViT-Q/16; nowhere/x.npz",
    "bench": "ViT-Q/16",
    "models": "ViT-B/16 --image-size x",
    "starts": "nowhere; vit-b17-in21k",
    "recipes": "nowhere",
    "completion": "tcsh;",
}
"""Arguments that are wrong, by verb."""
HEAVY = {"torch", "numpy", "PIL", "pyarrow", "sklearn", "matplotlib", "safetensors", "jinja2"}
CODE = """
import sys
from vitkit.cli.main import run
for line, codes in {lines!r}:
    assert run(line) in codes, line
    assert not {heavy!r} & {{*sys.modules}}, line
"""


def test_what_is_not_there_is_refused_and_help_given_without_torch(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no weights")
    wrong = [[verb, *arguments.split()] for verb in VERBS for arguments in WRONG[verb].split(";")]
    helps = [[verb, option] for verb in VERBS for option in ("-h", "--help", "--help-all")]
    helps += [["help", verb] for verb in VERBS]
    lines = [(line, (1, 2)) for line in wrong] + [(line, (0, 0)) for line in helps]
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(lines=lines, heavy=HEAVY)],
        capture_output=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(vitkit.__file__).parents[1])},
        text=True,
    )
    assert done.returncode == 0, done.stderr
    # Each is told in one sentence, and nothing was made.
    messages = [line for line in done.stderr.splitlines() if line.startswith("vitkit: ")]
    assert len(messages) == len(wrong), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
