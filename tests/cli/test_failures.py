"""A command that fails says so in one message, as JSON too, and never with a traceback."""

import json
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vitkit
from tests.helpers.hostile import HOSTILE, OBEYED, SHOWN
from vitkit.cli import console
from vitkit.cli.help import VERBS
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


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_options_are_told_as_json_too(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where a verb has no --json: whoever asks for it reads the answer as that."""
    arguments = {
        "data": ["check", "x"],
        "train": [],
        "finetune": ["x", "--data", "digits"],
        "report": ["x"],
        "recipes": [],
        "completion": ["bash"],
        "vtab": ["x", "--root", "x"],
        "convert": ["x", "y"],
        "embed": ["x", "y"],
        "export": ["x", "y"],
        "ablate": ["digits", "--vary", "position=none"],
        "reproduce": ["table8"],
    }.get(verb, ["x"])
    assert run([verb, *arguments, "--json", "--no-such-option"]) == 2
    record, before, message = failure(capsys)
    assert not before and record.keys() == {"error", "exit_code"} and record["exit_code"] == 2
    assert "--no-such-option" in record["error"] and "--no-such-option" in message
    assert message == f"vitkit: {record['error']}\n"  # one sentence in one style, and no box


def test_options_that_are_missing_or_misspelt_are_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in (
        (["card", "--json"], "CHECKPOINT is missing"),
        (["evaluate", "m", "--json", "--split"], "--split needs a value: --split SPLIT"),
        (["cards", "--json"], "no command is named 'cards'"),
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


def test_a_command_that_fails_says_so_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["card", "nothing here", "--json"]) == 1
    record, before, message = failure(capsys)
    assert record == {"error": "No checkpoint at nothing here.", "exit_code": 1} and not before
    assert message == "vitkit: No checkpoint at nothing here.\n"
    assert run(["card", "nothing here"]) == 1
    assert not capsys.readouterr().out

    def failing(error: BaseException | int) -> Any:
        def main(arguments: list[str]) -> None:
            console.print_json({"image": "first.png"}, indent=None)
            if isinstance(error, int):
                os.kill(os.getpid(), error)
            else:
                raise error

        return SimpleNamespace(main=main)

    for error, code, sentence in (
        (VitkitError(HOSTILE), 1, HOSTILE),
        (MemoryError(), 1, "the memory of this machine"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (signal.SIGTERM, 143, "SIGTERM"),
    ):
        monkeypatch.setitem(sys.modules, "vitkit.cli.starts", failing(error))
        assert run(["starts", "x", "--json"]) == code
        record, before, _ = failure(capsys)
        assert sentence in record["error"] and record["exit_code"] == code
        assert [json.loads(line) for line in before] == [{"image": "first.png"}]
    monkeypatch.setitem(sys.modules, "vitkit.cli.starts", failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):  # keeps its traceback
        run(["starts", "x", "--json"])
    assert failure(capsys)[0] == {"error": "ZeroDivisionError: a bug", "exit_code": 1}


def test_a_command_that_succeeds_or_helps_says_nothing_of_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["starts", "vit-b16-in21k", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert run(["starts", "--json", "--help"]) == 0
    assert "exit_code" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "memory of this machine"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "memory of"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "invalid start byte"),
        (OSError(13, "Permission denied", "/x\x1b"), r"/x\x1b: Permission denied"),
        (VitkitError(HOSTILE + "\nsecond line"), SHOWN + "\nsecond line"),
    ],
)
def test_errors_are_one_message(
    error: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr("vitkit.cli.starts.main", fail)
    assert run(["starts"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("vitkit: ") and sentence in message


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("shapes differ"), KeyError("x")):

        def fail(arguments: list[str], error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("vitkit.cli.starts.main", fail)
        with pytest.raises(type(error)):
            run(["starts"])


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "model", "images", "--device", "mps"]) == 1
    message = capsys.readouterr().err
    assert "'mps' cannot be used" in message and len(message) < 300


def test_hints(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in (
        (["predict", "model", "https://x.org/a.jpg"], "https://x.org/a.jpg is an address"),
        (["predict", "model", "images", "--max-pixels", "100"], "limit of 100"),
    ):
        assert run(arguments) == 1
        captured = capsys.readouterr()
        assert hint in captured.err + captured.out
    for arguments, hint in ((["train", "--recipe=digits", "--recipe=photos"], "given twice"),):
        assert run(arguments) == 2
        assert hint in capsys.readouterr().err
    assert run(["help", "train"]) == 0
    assert "usage: vitkit train" in capsys.readouterr().out
    assert run(["help", "trian"]) == 2
