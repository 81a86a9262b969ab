"""`vitkit scale`: what it prints and keeps."""

import json
from pathlib import Path

import pytest

from vitkit.cli.main import run

LINE = """scale digits --recipe digits --points 5 --threads 1 --model ViT-16x1x2x32/4 --image-size 8
--batch-size 16 --steps 10 --warmup-steps 2 --dropout 0.1"""
SCALE = LINE.split()


def test_a_plan_is_printed_and_no_folder_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*SCALE, "--out", str(tmp_path / "law"), "--plan"]
    assert run([*line, "--seeds", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "data-05 449 training images its own 3 10" in said and "6 arms, 18 runs, about" in said
    assert "1,347 training images are held out: predicted by the law of the others, then trained" in said
    assert run([*line, "--json"]) == 0
    plan = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert [(arm["name"], arm["steps"]) for arm in plan["arms"]] == [(f"data-0{n}", 10) for n in range(1, 7)]
    assert not (tmp_path / "law").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ablate", "vitkit ablate RECIPE"),
        ("ablate --vary pool=mean digits", "vitkit ablate RECIPE"),
        ("ablate --vary position=none", "Which recipe? It stands first"),
        ("ablate digits --plan", "Which option is to be varied?"),
        ("ablate digits --vary pool=mean --rates= --plan", "above 0, found none"),
        ("ablate digits --vary pool=mean --runs 3", "give --seeds and --rates"),
        (f"predict {__file__}", "Which model, and which images?"),  # one file alone
        ("scale digits --runs 3", "give --seeds, without --runs"),
        ("scale digits --budget 1m --steps 5", "give it without --steps"),
        ("scale digits --along size --start runs/x", "No checkpoint at runs/x"),
        ("scale digits --along size --start hf:org/model", "leave --start out"),
        ("scale digits --points 3", "points is from 5"),
        ("scale --along data", "DATA is missing: images"),
        ("scale  --plan", "DATA is missing: images"),
    ],
)
def test_command_lines_that_are_not_meant_are_refused(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split(" ")) == (2 if "DATA" in message else 1)
    assert message in " ".join(capsys.readouterr().err.split())
