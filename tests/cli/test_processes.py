"""`vitkit train --processes N`: real processes, by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from tests.helpers.cli import Cli, Printed
from tests.helpers.command_runs import children
from vitkit.cli.main import first_to_end
from vitkit.cli.main import run as command
from vitkit.durable import hash_file

SECONDS = 600.0
"""After which processes are given up; a machine under load is slow."""
RUN = (
    *("train", "--data", "digits", "--model", "ViT-16x2x2/4", "--image-size", "8", "--resize", "crop"),
    *("--steps", "15", "--batch-size", "33", "--mixup", "0.2", "--micro-batch-size", "20", "--threads", "1"),
    *("--checkpoint-every", "5", "--evaluate-every", "5", "--log-every", "5"),
)
LONGER = ("--steps", "120", "--evaluate-every", "40")
"""Enough steps that a run is killed before its end, however late a busy machine sees its checkpoint."""


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "vitkit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", code: int = 0) -> Printed:
    try:
        printed = Printed(*process.communicate(timeout=SECONDS))
    finally:
        process.kill()
    assert process.returncode == code and "Traceback" not in printed.err, printed.err
    return printed


def measured(run: Path, name: str) -> list[float]:
    """Read a number of every line of a run's log that has it."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def test_two_processes_train_what_one_does_and_the_same_bits_though_one_of_them_is_killed(
    tmp_path: Path, without_report: None
) -> None:
    """tests/jobs/test_unkillable.py kills three processes, whose sums could be taken in another order."""
    alone, run, whole = (tmp_path / name for name in ("alone", "run", "whole"))
    options = (*RUN, *LONGER, "--fewshot.data", "digits", "--fewshot.shots", "1,5")
    assert command([*options, "--out", str(alone)]) == 0
    several = (*options, "--processes", "2", "--sharding", "fsdp", "--out")
    finish(start(*several, str(whole)))
    process = start(*several, str(run))
    while not (run / "checkpoints" / "step-00000010" / "COMMIT").exists():
        assert process.poll() is None, finish(process)
        time.sleep(0.02)
    workers = children(process.pid)
    assert workers, finish(process)
    os.kill(workers[-1], signal.SIGKILL)
    err = finish(process, 1).err
    assert "was ended by SIGKILL" in err and "run the same command again" in err
    out = finish(start(*several, str(run))).out
    for name in ("model.safetensors", "metrics.jsonl"):
        assert hash_file(whole / name) == hash_file(run / name)
    assert "resumed" in out and "among 2 processes" in out
    assert out.count("report ") == 1  # one process alone speaks
    assert measured(run, "loss") == pytest.approx(measured(alone, "loss"), abs=1e-4)
    assert len(measured(alone, "ridge_5_shots")) == 3
    assert measured(run, "ridge_5_shots") == pytest.approx(measured(alone, "ridge_5_shots"), abs=0.02)
    lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines() if line]
    assert all(line["slowest_process"] in (0, 1) and 0 <= line["waiting"] <= 1 for line in lines)
    assert "waiting" not in (alone / "speed.jsonl").read_text()
    evaluations = [json.loads((path / "evaluation" / "test.json").read_text()) for path in (alone, run)]
    assert evaluations[0]["accuracy"] == pytest.approx(evaluations[1]["accuracy"], abs=0.02)


def test_the_process_that_was_killed_is_named_and_not_one_that_lost_it() -> None:
    ends = {
        rank: ProcessFailure(rank, 1, -code, "") for rank, code in enumerate((signal.SIGABRT, signal.SIGKILL))
    }
    assert first_to_end(ends)[0] == 1
    assert first_to_end({0: ends[0]})[0] == 0


def test_one_process_is_not_started_by_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr("torch.distributed.run.run", None)  # whoever called it would fail
    short = ("1" if word == "15" else word for word in RUN)
    said = cli([*short, "--processes", "1", "--sharding", "fsdp", "--out", str(tmp_path / "run")])
    assert "--sharding fsdp divides a run among processes, and there is one" in said.err
    # After the digits come photos, which are looked at first: are there enough to train from scratch?
    assert said.out.endswith("vitkit data check FOLDER_OF_YOUR_CLASS_FOLDERS\n")


def test_two_processes_evaluate_as_one_does(tmp_path: Path, without_report: None, cli: Cli) -> None:
    run = tmp_path / "run"
    short = ("3" if word == "15" else word for word in RUN)
    cli([*short, "--out", str(run)])
    arguments = ("evaluate", str(run), "--batch-size", "7", "--json")
    expected = json.loads(cli(arguments).out)
    evaluation = json.loads(finish(start(*arguments, "--processes", "2")).out)  # printed once
    for name in ("split", "count", "correct", "accuracy", "per_class"):
        assert evaluation[name] == expected[name]
    assert evaluation["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_processes_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for count in ("0", "x", "1" + "0" * 30):
        assert "--processes is from 1 to" in cli([*RUN, "--processes", count], 1).err
    ranks = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    for name, value in ranks.items():  # they are processes already
        monkeypatch.setenv(name, value)
    for verb in (RUN, ("evaluate", "run"), ("fewshot", "run")):
        assert "leave --processes out" in cli([*verb, "--processes", "2"], 1).err
    for name, value in (("RANK", "x"), ("RANK", "2"), ("WORLD_SIZE", "-1"), ("LOCAL_RANK", "7")):
        with monkeypatch.context() as patch:  # torchrun never sets them so
            patch.setenv(name, value)
            assert "torchrun" in cli(RUN, 1).err
