"""`vitkit train --processes N`: real processes, by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.command_runs import children
from vitkit.cli.main import run as command
from vitkit.durable import hash_file

SECONDS = 600.0
"""After which processes are given up; a machine under load is slow."""
RUN = (
    *("train", "--data", "digits", "--model", "ViT-16x2x2/4", "--image-size", "8", "--resize", "crop"),
    *("--steps", "15", "--batch-size", "33", "--mixup", "0.2", "--micro-batch-size", "20", "--threads", "1"),
    *("--checkpoint-every", "5", "--evaluate-every", "5", "--log-every", "5"),
)


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vitkit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    return process.returncode, out, err


def wait_for(path: Path, process: "subprocess.Popen[str]") -> None:
    end = time.monotonic() + SECONDS
    while not path.exists():
        assert process.poll() is None, finish(process)
        assert time.monotonic() < end
        time.sleep(0.02)


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if '"evaluator"' not in line]


def accuracies(run: Path) -> list[float]:
    """Read what the few-shot evaluation measured while a model was trained."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["ridge_5_shots"] for line in lines if line.get("evaluator") == "fewshot"]


def test_two_processes_train_what_one_does_and_the_same_bits_though_one_of_them_is_killed(
    tmp_path: Path, without_report: None
) -> None:
    """tests/jobs/test_unkillable.py kills three processes, whose sums could be taken in another order."""
    alone, run, whole = (tmp_path / name for name in ("alone", "run", "whole"))
    options = (*RUN, "--fewshot.data", "digits", "--fewshot.shots", "1,5")
    assert command([*options, "--out", str(alone)]) == 0
    several = (*options, "--processes", "2", "--sharding", "fsdp", "--out")
    code, _, err = finish(start(*several, str(whole)))
    assert code == 0, err
    process = start(*several, str(run))
    wait_for(run / "checkpoints" / "step-00000010" / "COMMIT", process)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1
    assert "was ended by SIGKILL" in err and "run the same command again" in err
    assert "Traceback" not in err
    code, out, err = finish(start(*several, str(run)))
    assert code == 0, err
    assert "resumed" in out and "Traceback" not in err
    for name in ("model.safetensors", "metrics.jsonl"):
        assert hash_file(whole / name) == hash_file(run / name)
    assert "among 2 processes" in out
    assert out.count("report ") == 1  # one process alone speaks
    assert losses(run) == pytest.approx(losses(alone), abs=1e-4)
    assert len(accuracies(alone)) == 3
    assert accuracies(run) == pytest.approx(accuracies(alone), abs=0.02)
    lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines() if line]
    assert all(line["slowest_process"] in (0, 1) and 0 <= line["waiting"] <= 1 for line in lines)
    assert "waiting" not in (alone / "speed.jsonl").read_text()
    evaluations = [json.loads((path / "evaluation" / "test.json").read_text()) for path in (alone, run)]
    assert evaluations[0]["accuracy"] == pytest.approx(evaluations[1]["accuracy"], abs=0.02)


def test_one_process_is_not_started_by_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("torch.distributed.run.run", refuse)
    short = ("1" if word == "15" else word for word in RUN)
    alone = ("--processes", "1", "--sharding", "fsdp")
    assert command([*short, *alone, "--out", str(tmp_path / "run")]) == 0
    assert "--sharding fsdp divides a run among processes, and there is one" in capsys.readouterr().err


def test_two_processes_evaluate_as_one_does(tmp_path: Path, without_report: None, cli: Cli) -> None:
    run = tmp_path / "run"
    short = ("3" if word == "15" else word for word in RUN)
    cli([*short, "--out", str(run)])
    arguments = ("evaluate", str(run), "--batch-size", "7", "--json")
    expected = json.loads(cli(arguments).out)
    code, out, err = finish(start(*arguments, "--processes", "2"))
    assert code == 0, err
    evaluation = json.loads(out)  # printed once
    for name in ("split", "count", "correct", "accuracy", "per_class"):
        assert evaluation[name] == expected[name]
    assert evaluation["loss"] == pytest.approx(expected["loss"], rel=1e-5)


RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


def test_processes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for count in ("0", "x", "1" + "0" * 30):
        assert "--processes is from 1 to" in cli([*RUN, "--processes", count], 1).err
    for name, value in RANKS.items():  # they are processes already
        monkeypatch.setenv(name, value)
    for verb in (RUN, ("evaluate", "run"), ("fewshot", "run")):
        assert "leave --processes out" in cli([*verb, "--processes", "2"], 1).err
    for name, value in (("RANK", "x"), ("RANK", "2"), ("WORLD_SIZE", "-1"), ("LOCAL_RANK", "7")):
        with monkeypatch.context() as patch:  # torchrun never sets them so
            patch.setenv(name, value)
            assert "torchrun" in cli(RUN, 1).err
