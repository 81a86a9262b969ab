"""A command that fails says so in one message, as JSON too, and never with a traceback."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.hostile import HOSTILE, OBEYED, SHOWN
from vitkit.cli import console
from vitkit.cli.main import run
from vitkit.errors import VitkitError

pytestmark = pytest.mark.usefixtures("inside")


def test_json_is_json_whatever_the_values(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": float("nan"), "b": HOSTILE})
    text = capsys.readouterr().out
    assert json.loads(text) == {"a": None, "b": HOSTILE, "not_finite": ["a"]}
    assert not any(character in text for character in OBEYED)


def test_json_has_one_way_out() -> None:
    """The console's own method knows nothing of encodings, of NaN and of control characters."""
    for path in Path(vitkit.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert ".out.print_json" not in text and "print(json." not in text, path


def failure(capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str], str]:
    """The JSON in the last line of standard output, the lines before, and standard error."""
    printed = capsys.readouterr()
    *before, last = printed.out.splitlines()
    return json.loads(last), before, printed.err


@pytest.mark.parametrize(
    "line", ["data check x", "train", "completion bash", "ablate digits --vary pool=max"]
)
def test_wrong_options_are_told_as_json_too(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a verb has no --json: whoever asks for it reads the answer as that."""
    assert run([*line.split(), "--json", "--no-such-option"]) == 2
    record, before, message = failure(capsys)
    assert not before and record.keys() == {"error", "exit_code"} and record["exit_code"] == 2
    assert "--no-such-option" in record["error"]
    assert message == f"vitkit: {record['error']}\n"  # one sentence in one style, and no box


def test_options_that_are_missing_or_misspelt_are_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["card", "--json"], "CHECKPOINT is missing"),
        (["evaluate", "m", "--json", "--split"], "--split needs a value: --split SPLIT"),
        (["cards", "--json"], "No command is named 'cards'"),
        (["card", "x\0", "--json"], "a character that no option has"),
        (
            ["predict", "m", "x", "--json", "--topp", "3"],
            "vitkit predict has no option --topp. Did you mean --top?",
        ),
    ):
        assert run(arguments) == 2
        record, before, message = failure(capsys)
        assert sentence in record["error"] and record["exit_code"] == 2 and not before
        assert message.startswith("vitkit: ") and sentence.split()[0] in message


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (VitkitError(HOSTILE + "\nsecond line"), 1, f"{HOSTILE}\nsecond line"),
        (MemoryError(), 1, "the memory of this machine"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), 1, "the memory of"),
        (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 1, "invalid start byte"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device. What was finished"),
        (OSError(13, "Permission denied", "/x\x1b"), 1, "/x\x1b: Permission denied. Correct this"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (signal.SIGTERM, 143, "SIGTERM"),
        (RuntimeError("shapes differ"), 0, "RuntimeError: shapes differ"),
        (ZeroDivisionError("a bug"), 0, "ZeroDivisionError: a bug"),
    ],
)
def test_a_command_that_fails_says_so_in_one_message_and_as_json(
    error: BaseException | int,
    code: int,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bug keeps its traceback."""

    def main(arguments: list[str]) -> None:
        console.print_json({"image": "first.png"}, indent=None)
        if isinstance(error, int):
            os.kill(os.getpid(), error)
        else:
            raise error

    monkeypatch.setattr("vitkit.cli.verbs.STARTS.main", main)
    for line in (["starts", "--json"], ["starts"])[: 1 + (code != 143)]:  # then it ignores signals
        if code:
            assert run(line) == code
        else:
            with pytest.raises((RuntimeError, ZeroDivisionError)):
                run(line)
        printed = capsys.readouterr()
        first, *last = map(json.loads, printed.out.splitlines())
        assert first == {"image": "first.png"} and len(last) == len(line) - 1
        assert all(sentence in record["error"] and record["exit_code"] == (code or 1) for record in last)
        shown = sentence.replace(HOSTILE, SHOWN).replace("\x1b", r"\x1b")
        assert not code or (printed.err.startswith("vitkit: ") and shown in printed.err)


def test_a_command_that_succeeds_or_helps_says_nothing_of_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["starts", "vit-b16-in21k", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert run(["starts", "--json", "--help"]) == 0
    assert "exit_code" not in capsys.readouterr().out


def test_hints(capsys: pytest.CaptureFixture[str]) -> None:
    for line, code, hint in (
        ("card nothing", 1, "vitkit: No checkpoint at nothing.\n"),
        ("predict model images --device mps", 1, "'mps' cannot be used"),
        ("predict model https://x.org/a.jpg", 1, "https://x.org/a.jpg is an address"),
        ("predict model images --max-pixels 100", 1, "limit of 100"),
        ("train --recipe=digits --recipe=photos", 2, "given twice"),
        ("help train", 0, "usage: vitkit train"),
        ("help trian", 2, "No command is named 'trian'"),
    ):
        assert run(line.split()) == code
        assert hint in "".join(capsys.readouterr())
