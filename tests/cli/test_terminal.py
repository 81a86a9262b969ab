"""The command line with streams, encodings, names and control characters of every kind."""

import base64
import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

import vitkit
from tests.helpers.cli import Capture, Cli
from tests.helpers.hostile import HOSTILE, OBEYED, SHOWN
from vitkit.cli import console, streams
from vitkit.cli.main import run

pytestmark = pytest.mark.usefixtures("inside")


def vitkit_in_a_shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which `vitkit` is the command."""
    line = f'vitkit() {{ "{sys.executable}" -m vitkit "$@"; }}; {command}'
    source = str(Path(vitkit.__file__).parents[1])
    given = {**os.environ, "PYTHONPATH": source, **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, env=given)


# The end


def test_what_was_imported_is_not_searched_for_garbage_at_the_end() -> None:
    """Exit handlers still run, and the exit code is that of the command."""
    program = (
        "import atexit, gc, sys; from vitkit.__main__ import main; sys.argv = ['vitkit', 'recipez']; "
        "atexit.register(lambda: print('left to search:', gc.get_freeze_count() == 0)); main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (2, "left to search: False\n")


# Streams


def test_a_reader_that_goes_away_early() -> None:
    done = vitkit_in_a_shell("{ sleep 0.2; vitkit recipes; echo $? >&2; } | true")
    assert done.stderr.decode().split() == ["141"]


def test_closed_streams() -> None:
    commands = ("vitkit recipes >&- <&- 2>&-", "vitkit x 2>&-", "vitkit x 2>/dev/full")
    done = vitkit_in_a_shell("; ".join(f"{command}; echo $?" for command in commands))
    assert done.stdout.decode().split()[-3:] == ["0", "2", "2"]
    assert not done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import os; from vitkit.cli import streams; streams.prepare(); "
        f"file = open({str(tmp_path / 'new')!r}, 'w'); assert file.fileno() > 2; print('x', flush=True)"
    )
    done = vitkit_in_a_shell(f'"{sys.executable}" -c "{code}" <&- >&-')
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new").read_text() == ""


def test_standard_output_that_refuses(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    stdout = Mock(wraps=io.StringIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", stdout)
    stdout.flush.side_effect = OSError(28, "No space left on device")
    assert run(["models", "ViT-B/16"]) == 1 and "No space left" in capsys.readouterr().err
    assert run(["models", "nothing*"]) == 1 and "No name matches" in capsys.readouterr().err
    stdout.flush.side_effect = BrokenPipeError()
    assert run(["models", "ViT-B/16"]) == 141 and not capsys.readouterr().err


def test_without_streams_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert run(["models", "ViT-B/16"]) == 0 and run(["trian"]) == 2
    assert run(["predict", "model", "images", "--json"]) == 0
    assert run(["predict", "model", "-"]) == 1
    with console.TerminalListener().progress("waiting", 2) as progress:
        progress(2)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8"])
def test_output_of_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "猫é.png").write_bytes(Path("images/a/0.png").read_bytes())
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    streams.prepare()
    assert run(["predict", "model", "猫é.png", "--json"]) == 0
    assert run(["predict", "model", "猫é.png"]) == 0
    assert run(["predict", "model", "猫猫.png"]) == 1
    text = out.buffer.getvalue().decode(encoding)
    assert json.loads(text.splitlines()[0])["image"] == "猫é.png"
    assert (r"\u732b" in text) == (encoding != "utf-8")


def test_the_locale_c_without_utf8_mode(tmp_path: Path) -> None:
    (tmp_path / "é.png").write_bytes(Path("images/a/0.png").read_bytes())
    without = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = vitkit_in_a_shell("vitkit predict model é.png --json; vitkit predict model é.png", **without)
    line, *table = done.stdout.decode("ascii").splitlines()
    assert json.loads(line)["image"] == "é.png" and not done.stderr
    assert r"\xc3\xa9.png" in "".join(table)


# Standard input


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def test_names_that_are_not_utf8(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Cli) -> None:
    name = b"caf\xe9 \xff.png"
    (tmp_path / os.fsdecode(name)).write_bytes(Path("images/a/0.png").read_bytes())
    standard_input(monkeypatch, name + b"\n\n")
    line = json.loads(cli(["predict", "model", "-", "--json"]).out)
    assert base64.b64decode(line["image_base64"]) == name and line["image"] == r"caf\xe9 \xff.png"
    assert len(line["predictions"]) == 2
    assert r"caf\xe9 \xff.png" in cli(["predict", "model", os.fsdecode(name)]).out


def test_lists_that_are_no_lists(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    for data, message in (
        (b"\xff\n", r"\xff"),
        (b"a\0b.png\n", "could not be read"),
        (b"-\n", "could not be read"),
        (b"x" * 5000, "File name too long"),
    ):
        standard_input(monkeypatch, data)
        assert message in cli(["predict", "model", "-"], 1).text


# Control characters


def test_class_names_and_files_are_shown_not_obeyed(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / f"{HOSTILE}.png").write_bytes(Path("images/a/0.png").read_bytes())
    (tmp_path / f"{HOSTILE}.jpg").write_text("no image")
    for arguments in (
        ["predict", "model", f"{HOSTILE}.png", f"{HOSTILE}.jpg"],
        ["predict", "model", f"{HOSTILE}.png", "--json"],
        ["card", "model"],
        ["inspect", "model", "--images", f"{HOSTILE}.jpg"],
        ["card", HOSTILE],
        [HOSTILE],
        ["train", "--data", HOSTILE],
    ):
        run(arguments)
        text = "".join(capsys.readouterr())
        assert not any(character in text for character in OBEYED), arguments
        assert r"\x1b" in text or r"\u001b" in text, arguments


def test_tables_bars_and_warnings_are_shown_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    names = ["[red]dog[/red]", "[/]", "[bold"]  # no markup is taken from a name
    console.print_table(("class", "images"), [(name, "3") for name in names])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == names
    console.print_table([HOSTILE, "b"], [[console.bold(HOSTILE), HOSTILE]])
    console.print_lines(HOSTILE)
    text = capsys.readouterr().out
    assert not any(character in text for character in OBEYED)
    assert text.replace("\n", "").count(SHOWN) == 4  # laid out at the width that it has
    with console.show_warnings():
        logging.getLogger("vitkit").warning("%s", HOSTILE)
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    listener = console.TerminalListener()
    with listener.progress(HOSTILE, 3) as progress:
        progress(1)
    listener.note(f"[/] {HOSTILE}")
    text = capsys.readouterr().err
    assert not any(character in text for character in OBEYED) and text.count(SHOWN) == 3 and "[/] " in text


def test_colours_and_movements_of_the_cursor_stay() -> None:
    file = io.StringIO()
    terminal = console.Terminal(file=file, force_terminal=True, width=80, color_system="standard")
    terminal.print(f"[red]{HOSTILE}[/]", highlight=False)
    terminal.clear()
    assert "\x1b[31mcat\\x1b]0" in file.getvalue() and "\x1b[2J" in file.getvalue()


# Progress without a terminal


def test_a_log_tells_how_a_loop_goes(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with console.TerminalListener().progress("training", 1000) as progress:
        for step in range(1, 101):
            clock.now += 1.0
            progress(step, detail=f"loss {step}", milestone=step == 7)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["7/1,000", "67/1,000"]
    assert lines[0].endswith("loss 7")
    with console.TerminalListener().progress("fetching x", unit="bytes") as progress:
        clock.now += 61
        progress(5_000_000, 10_000_000)
    assert "fetching x 5.0 MB/10.0 MB" in capsys.readouterr().err
