"""`vitkit train --processes N`: real processes, by torchrun."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

import vitkit
from vitkit.cli.main import run as command
from vitkit.durable import hash_file

SECONDS = 600.0
"""After which processes are given up; a machine under load is slow."""
RUN = (
    *("train", "--data", "digits", "--model", "ViT-16x2x2/4", "--image-size", "8", "--resize", "crop"),
    *("--steps", "60", "--batch-size", "33", "--mixup", "0.2", "--micro-batch-size", "20", "--threads", "1"),
    *("--checkpoint-every", "10", "--evaluate-every", "20", "--log-every", "5"),
)


def start(*arguments: str, by: Sequence[str] = ()) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *by, "-m", "vitkit", *arguments],
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


def members(torchrun: int) -> list[int]:
    """List the processes that a command has started, in the order in which it started them."""
    return [int(number) for number in Path(f"/proc/{torchrun}/task/{torchrun}/children").read_text().split()]


def losses(run: Path) -> list[float]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if '"evaluator"' not in line]


def accuracies(run: Path) -> list[float]:
    """Read what the few-shot evaluation measured while a model was trained."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["ridge_5_shots"] for line in lines if line.get("evaluator") == "fewshot"]


def test_two_processes_train_what_one_does_though_one_of_them_is_killed(tmp_path: Path) -> None:
    alone, run = tmp_path / "alone", tmp_path / "run"
    options = (*RUN, "--fewshot.data", "digits", "--fewshot.shots", "1,5")
    assert command([*options, "--out", str(alone)]) == 0
    several = (*options, "--out", str(run), "--processes", "2", "--sharding", "fsdp")
    process = start(*several)
    wait_for(run / "checkpoints" / "step-00000020" / "COMMIT", process)
    os.kill(members(process.pid)[-1], signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 1
    assert "was ended by SIGKILL" in err and "run the same command again" in err
    assert "Traceback" not in err
    code, out, err = finish(start(*several))
    assert code == 0, err
    assert "resumed" in out and "Traceback" not in err
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


@pytest.mark.slow
def test_torchrun_starts_processes_again_after_one_was_killed(tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    code, _, err = finish(start(*RUN, "--out", str(whole), "--processes", "2"))
    assert code == 0, err
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")
    process = start(*RUN, "--out", str(run), by=torchrun)
    wait_for(run / "checkpoints" / "step-00000020" / "COMMIT", process)
    os.kill(members(process.pid)[-1], signal.SIGKILL)
    code, out, err = finish(process)
    assert code == 0, err
    assert "resumed" in out
    for name in ("model.safetensors", "metrics.jsonl"):
        assert hash_file(whole / name) == hash_file(run / name)


LONG = tuple("100000" if word == "60" else word for word in RUN)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_processes_that_wait_for_one_that_is_stopped_end_when_they_are_asked_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    process = start(*LONG, "--out", str(run), "--processes", "3")
    wait_for(run / "checkpoints" / "step-00000020" / "COMMIT", process)
    *waiting, stopped = members(process.pid)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(1)
    for member in waiting:
        os.kill(member, number)
    time.sleep(10)
    left = [member for member in waiting if Path(f"/proc/{member}").exists()]
    os.kill(stopped, signal.SIGCONT)
    code, _, err = finish(process)
    assert not left and code == 128 + number, err
    newest = max(path.parent.name for path in (run / "checkpoints").glob("step-*/COMMIT"))
    process = start(*LONG, "--out", str(run))
    wait_for(run / "checkpoints" / f"step-{int(newest.removeprefix('step-')) + 10:08}" / "COMMIT", process)
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert "resumed" in out, err


def test_one_process_is_not_started_by_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr("torch.distributed.run.run", refuse)
    short = ("1" if word == "60" else word for word in RUN)
    alone = ("--processes", "1", "--sharding", "fsdp")
    assert command([*short, *alone, "--out", str(tmp_path / "run")]) == 0
    assert "--sharding fsdp divides a run among processes, and there is one" in capsys.readouterr().err


def test_two_processes_evaluate_as_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    short = ("3" if word == "60" else word for word in RUN)
    assert command([*short, "--out", str(run)]) == 0
    capsys.readouterr()
    arguments = ("evaluate", str(run), "--batch-size", "7", "--json")
    assert command([*arguments]) == 0
    expected = json.loads(capsys.readouterr().out)
    code, out, err = finish(start(*arguments, "--processes", "2"))
    assert code == 0, err
    evaluation = json.loads(out)  # printed once
    for name in ("split", "count", "correct", "accuracy", "per_class"):
        assert evaluation[name] == expected[name]
    assert evaluation["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    code, _, err = finish(start("evaluate", str(tmp_path / "none"), "--processes", "2"))
    assert code == 1
    assert err.count("vitkit: ") == 1 and "none" in err


def test_two_processes_measure_few_shots_as_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitkit.create_model("ViT-16x2x2/4", num_classes=0, image_size=8)
    vitkit.save_model(model, tmp_path / "start")
    line = f"fewshot {tmp_path / 'start'} --data digits --shots 1,5 --no-cache --json"
    arguments = line.split()
    assert command([*arguments, "--out", str(tmp_path / "one")]) == 0
    expected = json.loads(capsys.readouterr().out)
    code, out, err = finish(start(*arguments, "--out", str(tmp_path / "two"), "--processes", "2"))
    assert code == 0, err
    assert json.loads(out) == expected  # printed once
    assert (tmp_path / "two" / "digits.json").read_text() == (tmp_path / "one" / "digits.json").read_text()


RANKS = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("line", "variables", "message"),
    [
        *(
            ((*RUN, "--processes", count), {}, "--processes is from 1 to")
            for count in ("0", "x", "1" + "0" * 30)
        ),
        *(
            ((*verb, "--processes", "2"), RANKS, "leave --processes out")  # they are processes already
            for verb in (RUN, ("evaluate", "run"), ("fewshot", "run"))
        ),
        *(
            (RUN, RANKS | wrong, "torchrun")  # which never sets them so
            for wrong in ({"RANK": "x"}, {"RANK": "2"}, {"WORLD_SIZE": "-1"}, {"LOCAL_RANK": "7"})
        ),
    ],
)
def test_processes_that_cannot_be_are_refused(
    line: tuple[str, ...],
    variables: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert command([*line]) == 1
    assert message in capsys.readouterr().err
