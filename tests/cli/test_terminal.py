"""The command line with streams, encodings, names and values of every kind: words, and never a traceback."""

import base64
import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.table import Table

import vitkit
from vitkit.cli import console, streams
from vitkit.cli import main as cli
from vitkit.cli.library_warnings import show_warnings
from vitkit.cli.main import run
from vitkit.errors import DecodeError, VitkitError
from vitkit.models.build import create_model
from vitkit.weights import save_model

HOSTILE = "cat\x1b]0;owned\x07\u202egnp\x9b2J"
SHOWN = r"cat\x1b]0;owned\x07\u202egnp\x9b2J"
OBEYED = ("\x1b", "\x07", "\x9b", "\u202e", "\x7f")


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 20, 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with hostile class names, and images of two classes."""
    root = tmp_path_factory.mktemp("terminal")
    model = create_model("ViT-16x1x2/4", num_classes=2, image_size=(16, 16))
    with torch.no_grad():
        model.get_parameter("head.weight").normal_(generator=torch.Generator().manual_seed(0))
    model.card = replace(model.card, class_names=(HOSTILE, "dog"))
    save_model(model, root / "model")
    for name in ("a", "b"):
        (root / "images" / name).mkdir(parents=True)
        for i in range(5):
            picture(i).save(root / "images" / name / f"{i}.png")
    (root / "text.txt").write_text("no image")
    (root / "loop").symlink_to("loop")
    (root / "empty").mkdir()
    return root


@pytest.fixture(autouse=True)
def _inside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path if path.name != "loop" else "loop")
    monkeypatch.chdir(tmp_path)
    yield


def vitkit_in_a_shell(command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of a shell in which `vitkit` is the command."""
    line = f'vitkit() {{ "{sys.executable}" -m vitkit "$@"; }}; {command}'
    source = str(Path(vitkit.__file__).parents[1])
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        timeout=1800,
        env={**os.environ, "PYTHONPATH": source, **environment},
    )


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


@pytest.mark.parametrize("arguments", ["--help", "recipes"])
def test_a_reader_that_goes_away_early(arguments: str) -> None:
    done = vitkit_in_a_shell(f"{{ sleep 0.2; vitkit {arguments}; echo $? >&2; }} | true")
    assert done.stderr.decode().split() == ["141"]


def test_a_full_disk_behind_the_output() -> None:
    done = vitkit_in_a_shell("vitkit --help > /dev/full")
    words = done.stderr.decode()
    assert done.returncode == 1
    assert words.count("\n") == 1 and "No space left on device" in words


def test_closed_streams() -> None:
    done = vitkit_in_a_shell(
        "vitkit --help >&-; echo $?; vitkit recipes >&- <&- 2>&-; echo $?; vitkit recipez 2>&-; echo $?; "
        "vitkit recipez 2>/dev/full; echo $?"
    )
    assert done.stdout.decode().split()[-4:] == ["0", "0", "2", "2"]
    assert not done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import os; from vitkit.cli import streams; streams.prepare(); "
        f"file = open({str(tmp_path / 'new')!r}, 'w'); assert file.fileno() > 2; print('x', flush=True)"
    )
    line = f'"{sys.executable}" -c "{code}" <&- >&-'
    done = vitkit_in_a_shell(line)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new").read_text() == ""


class Refusing(io.StringIO):
    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


def test_standard_output_that_refuses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Refusing(OSError(28, "No space left on device")))
    assert run(["models", "ViT-B/16"]) == 1 and "No space left" in capsys.readouterr().err
    assert run(["models", "nothing*"]) == 1 and "No name matches" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", Refusing(BrokenPipeError()))
    assert run(["models", "ViT-B/16"]) == 141 and not capsys.readouterr().err


def test_without_streams_at_all(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert run(["models", "ViT-B/16"]) == 0 and run(["trian"]) == 2
    assert run(["predict", "model", "images", "--json"]) == 0
    assert run(["predict", "model", "-"]) == 1
    with console.count_bar("waiting", 2) as advance:
        advance(2)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_output_of_any_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "猫é.png").write_bytes(Path("images/a/0.png").read_bytes())
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    streams.prepare()
    assert run(["predict", "model", "猫é.png"]) == 0
    assert run(["predict", "model", "猫é.png", "--json"]) == 0
    assert run(["predict", "model", "猫猫.png"]) == 1
    assert run(["predict", "--help"]) == 0
    text = out.buffer.getvalue().decode(encoding)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    assert json.loads(lines[0])["image"] == "猫é.png"
    assert (r"\u732b" in text) == (encoding != "utf-8")


def test_the_locale_c_without_utf8_mode(tmp_path: Path) -> None:
    (tmp_path / "é.png").write_bytes(Path("images/a/0.png").read_bytes())
    done = vitkit_in_a_shell(
        "vitkit predict model é.png --json; vitkit predict model é.png",
        LC_ALL="C",
        PYTHONCOERCECLOCALE="0",
        PYTHONUTF8="0",
    )
    line, *table = done.stdout.decode("ascii").splitlines()
    assert json.loads(line)["image"] == "é.png" and not done.stderr
    assert r"\xc3\xa9.png" in "".join(table)


# Standard input


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "utf-8"))


def test_names_that_are_not_utf8(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = b"caf\xe9 \xff.png"
    try:
        (tmp_path / os.fsdecode(name)).write_bytes(Path("images/a/0.png").read_bytes())
    except OSError:
        pytest.skip("this file system has no such names")
    standard_input(monkeypatch, name + b"\n\n")
    assert run(["predict", "model", "-", "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert base64.b64decode(line["image_base64"]) == name and line["image"] == r"caf\xe9 \xff.png"
    assert len(line["predictions"]) == 2
    assert run(["predict", "model", os.fsdecode(name)]) == 0
    assert r"caf\xe9 \xff.png" in capsys.readouterr().out


def test_lists_that_are_no_lists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for data, words in (
        (b"\xff\n", r"\xff"),
        (b"a\0b.png\n", "could not be read"),
        (b"", "is empty"),
        (b"-\n", "could not be read"),
        (b"x" * 5000, "File name too long"),
    ):
        standard_input(monkeypatch, data)
        assert run(["predict", "model", "-"]) == 1
        captured = capsys.readouterr()
        assert words in captured.out + captured.err
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["predict", "model", "-"]) == 1
    assert "Standard input is closed" in capsys.readouterr().err


# Control characters


def test_class_names_and_files_are_shown_not_obeyed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / f"{HOSTILE}.png").write_bytes(Path("images/a/0.png").read_bytes())
    (tmp_path / f"{HOSTILE}.jpg").write_text("no image")
    for arguments in (
        ["predict", "model", f"{HOSTILE}.png", f"{HOSTILE}.jpg"],
        ["predict", "model", f"{HOSTILE}.png", "--top", "1"],
        ["predict", "model", f"{HOSTILE}.png", "--json"],
        ["card", "model"],
        ["card", "model", "--json"],
        ["inspect", "model", "--images", f"{HOSTILE}.jpg"],
        ["card", HOSTILE],
        [HOSTILE],
        ["train", "--data", HOSTILE],
        ["predict", "model", "images", f"--{HOSTILE}"],
    ):
        run(arguments)
        captured = capsys.readouterr()
        text = captured.out + captured.err
        assert not any(character in text for character in OBEYED), arguments
        assert r"\x1b" in text or r"\u001b" in text, arguments


def test_tables_bars_and_warnings_are_shown_not_obeyed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(HOSTILE, "b")
    table.add_row(f"[red]{HOSTILE}[/]", HOSTILE)
    console.out.print(table)
    console.out.print(HOSTILE, markup=False, soft_wrap=True)
    text = capsys.readouterr().out
    assert not any(character in text for character in OBEYED)
    assert text.replace("\n", "").count(SHOWN) == 4  # laid out at the width that it has
    with show_warnings():
        logging.getLogger("vitkit").warning("%s", HOSTILE)
    monkeypatch.setattr(console, "LINE_SECONDS", 0.0)
    with console.count_bar(HOSTILE, 3) as advance:
        advance(1)
    text = capsys.readouterr().err
    assert not any(character in text for character in OBEYED) and text.count(SHOWN) == 2


def test_colours_and_movements_of_the_cursor_stay() -> None:
    file = io.StringIO()
    terminal = console.Terminal(file=file, force_terminal=True, width=80, color_system="standard")
    terminal.print(f"[red]{HOSTILE}[/]", highlight=False)
    terminal.clear()
    assert "\x1b[31mcat\\x1b]0" in file.getvalue() and "\x1b[2J" in file.getvalue()


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


@pytest.mark.parametrize("verb", cli.VERBS)
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
    found, before, words = failure(capsys)
    assert not before and found.keys() == {"error", "exit_code"} and found["exit_code"] == 2
    assert "--no-such-option" in found["error"] and "--no-such-option" in words
    assert words == f"vitkit: {found['error']}\n"  # one sentence in one style, and no box


def test_options_that_are_missing_or_misspelt_are_told_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
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
        found, before, told = failure(capsys)
        assert words in found["error"] and found["exit_code"] == 2 and not before
        assert told.startswith("vitkit: ") and words.split()[0] in told


def test_a_command_that_fails_says_so_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["card", "nothing here", "--json"]) == 1
    found, before, words = failure(capsys)
    assert found == {"error": "No checkpoint at nothing here.", "exit_code": 1} and not before
    assert words == "vitkit: No checkpoint at nothing here.\n"
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

    for error, code, words in (
        (VitkitError(HOSTILE), 1, HOSTILE),
        (MemoryError(), 1, "the memory of this machine"),
        (OSError(28, "No space left on device", "/x"), 1, "/x: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (signal.SIGTERM, 143, "SIGTERM"),
    ):
        monkeypatch.setitem(sys.modules, "vitkit.cli.card", failing(error))
        assert run(["card", "x", "--json"]) == code
        found, before, _ = failure(capsys)
        assert words in found["error"] and found["exit_code"] == code
        assert [json.loads(line) for line in before] == [{"image": "first.png"}]
    monkeypatch.setitem(sys.modules, "vitkit.cli.card", failing(ZeroDivisionError("a bug")))
    with pytest.raises(ZeroDivisionError):  # keeps its traceback
        run(["card", "x", "--json"])
    assert failure(capsys)[0] == {"error": "ZeroDivisionError: a bug", "exit_code": 1}


def test_a_command_that_succeeds_or_helps_says_nothing_of_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["starts", "vit-b16-in21k", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
    assert run(["starts", "--json", "--help"]) == 0
    assert "exit_code" not in capsys.readouterr().out


# Progress without a terminal


def test_a_log_tells_how_a_loop_goes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with console.progress_bar() as bar:
        task = bar.add_task("training", total=1000, completed=0, detail="")
        for step in range(1, 101):
            clock.now += 1.0
            bar.update(task, completed=step, detail=f"loss {step}", milestone=step == 7)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["7/1,000", "67/1,000"]
    assert lines[0].endswith("loss 7")
    with console.download_bar("fetching x") as progress:
        clock.now += 61
        progress(5_000_000, 10_000_000)
    assert "fetching x 5.0 MB/10.0 MB" in capsys.readouterr().err


def test_a_validation_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "ViT-16x1x2/4", "--image-size", "16", "--batch-size", "4", "--warmup-steps", "0"]
    options += ["--epochs", "2", "--splits.val-fraction", "0.3"]
    assert run(["train", "--data", "images", *options]) == 0
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if line.startswith("training")]
    assert len(lines) >= 2 and all("val " in line and "loss " in line for line in lines)


# Errors


@pytest.mark.parametrize(
    ("error", "words"),
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
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: list[str]) -> None:
        raise error

    monkeypatch.setattr("vitkit.cli.models.main", fail)
    assert run(["models"]) == 1
    message = capsys.readouterr().err
    assert message.startswith("vitkit: ") and words in message


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("shapes differ"), KeyError("x")):

        def fail(arguments: list[str], error: Exception = error) -> None:
            raise error

        monkeypatch.setattr("vitkit.cli.models.main", fail)
        with pytest.raises(type(error)):
            run(["models"])


def test_a_device_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", "model", "images", "--device", "mps"]) == 1
    message = capsys.readouterr().err
    assert "'mps' cannot be used" in message and len(message) < 300


def test_hints(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        (["predict", "model", "https://x.org/a.jpg"], "https://x.org/a.jpg is an address"),
        (["predict", "model", "images", "--max-pixels", "100"], "limit of 100"),
    ):
        assert run(arguments) == 1
        captured = capsys.readouterr()
        assert words in captured.err + captured.out
    for arguments, words in (
        (["train", "my photos/"], "vitkit train --data 'my photos/'"),
        (["train", "--recipe=digits", "--recipe=photos"], "given twice"),
    ):
        assert run(arguments) == 2
        assert words in capsys.readouterr().err
    assert run(["help", "train"]) == 0
    assert "usage: vitkit train" in capsys.readouterr().out
    assert run(["help", "trian"]) == 2


NUMBERS = ["nan", "inf", "1e308", "-1", "0", "1" + "0" * 30, "", "x" * 300, "٣", "\0"]
PATHS = [
    "",
    "\0",
    "p" * 5000,
    "images",
    "text.txt",
    "loop",
    "loop/x",
    "/dev/null",
    "~nobody_x/y",
    "\udcff.png",
]
PREDICT = ("predict", "model", "images/a/0.png")
COST = ("cost", "ViT-16x1x2/4", "--images", "1000")
NUMERIC = [
    (*PREDICT, "--top"),
    (*PREDICT, "--batch-size"),
    (*PREDICT, "--max-pixels"),
    (*PREDICT, "--num-heads"),
    (*PREDICT, "--image-size"),
    ("evaluate", "model", "--data", "images", "--batch-size"),
    ("evaluate", "model", "--data", "images", "--workers"),
    ("evaluate", "model", "--data", "images", "--max-pixels"),
    ("evaluate", "model", "--data", "images", "--worker-timeout"),
    ("card", "model", "--num-heads"),
    ("card", "model", "--image-size"),
    ("convert", "model", "out", "--num-classes"),
    (*COST, "--epochs"),
    (*COST, "--utilization"),
    ("cost", "ViT-16x1x2/4", "--batch-size"),
    ("models", "ViT-Ti/16", "--image-size"),
    ("models", "ViT-Ti/16", "--num-classes"),
    ("data", "check", "images", "--splits.val-fraction"),
    ("data", "check", "images", "--splits.seed"),
    ("data", "check", "images", "--max-pixels"),
]
NAMED: list[tuple[str, ...]] = [
    ("predict", "model"),
    ("predict",),
    ("evaluate", "model", "--data"),
    ("evaluate",),
    ("inspect", "model", "--images"),
    ("card",),
    ("convert", "model"),
    ("cost",),
    ("models",),
    ("report",),
    ("data", "check"),
    ("train", "--out", "text.txt", "--data"),
    ("train", "--resume"),
    ("train", "--recipe"),
    ("train", "--model"),
    (),
]


def sane(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(arguments)
    captured = capsys.readouterr()
    assert code in (0, 1, 2), arguments
    assert code == 0 or captured.err + captured.out, arguments
    assert "Traceback" not in captured.err and "Exception" not in captured.err, arguments


@pytest.mark.parametrize("command", NUMERIC, ids=" ".join)
def test_odd_numbers(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for value in NUMBERS:
        sane([*command[:-1], f"{command[-1]}={value}"], capsys)


@pytest.mark.parametrize("command", NAMED, ids=" ".join)
def test_odd_paths(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for value in PATHS:
        sane([*command, value, *(["images/a/0.png"] if command == ("predict",) else [])], capsys)


# Predicting


def test_weights_that_are_not_finite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = create_model("ViT-16x1x2/4", num_classes=2, image_size=(16, 16))
    with torch.no_grad():
        model.get_parameter("head.weight").fill_(float("inf"))
    save_model(model, tmp_path / "broken")
    for options in ([], ["--json"]):
        assert run(["predict", "broken", "images", *options]) == 1
        captured = capsys.readouterr()
        assert "not finite" in captured.err and captured.out.count("\n") == len(options)  # no answer


def test_the_predictor_takes_ordinary_things() -> None:
    predictor = vitkit.Predictor("model")
    path = Path("images/a/0.png")
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"))
        pixels = np.asarray(image).copy()
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = predictor(path)
    with path.open("rb") as file:
        things: list[Any] = [file, io.BytesIO(path.read_bytes()), bytearray(path.read_bytes()), tensor]
        assert all(predictor(thing) == expected for thing in things)
    batches: list[Any] = [
        [path, pixels],
        (path, tensor),
        np.stack([pixels, pixels]),
        tensor[None].repeat(2, 1, 1, 1),
    ]
    for batch in batches:
        found = [guess.probability for guesses in predictor.many(batch) for guess in guesses]
        assert found == pytest.approx([guess.probability for guess in expected] * 2, abs=1e-6)
    of_grey = predictor(np.repeat(grey[:, :, None], 3, 2))
    for thing in (grey, grey[:, :, None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
        assert predictor(thing) == of_grey
    assert predictor.many([]) == []


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (None, "found NoneType"),
        (7, "found int"),
        (np.zeros((4, 4)), r"float64"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"\(2, 3, 4, 4\)"),
        (torch.zeros(3, 4, 4), "float32"),
        (io.StringIO("x"), "mode 'rb'"),
        ("https://x.org/a.jpg", r"https://x\.org/a\.jpg is an address"),
        (Path("https://x.org/a.jpg"), r"https://x\.org/a\.jpg is an address"),
    ],
    ids=[
        "none",
        "number",
        "floats",
        "empty",
        "batch",
        "float-tensor",
        "text",
        "address",
        "path-of-address",
    ],
)
def test_the_predictor_refuses_the_rest_in_words(thing: Any, words: str) -> None:
    predictor = vitkit.Predictor("model")
    with pytest.raises(VitkitError, match=words):
        predictor(thing)


def test_the_predictor_names_the_file_and_what_is_several() -> None:
    predictor = vitkit.Predictor("model")
    with pytest.raises(DecodeError, match=r"nowhere\.png: no such file"):
        predictor("nowhere.png")
    with pytest.raises(DecodeError, match=r"text\.txt: "):
        predictor.many([Path("text.txt")])
    several: list[Any] = ["images/a/0.png", np.zeros((4, 4, 3), np.uint8), b"x"]
    for one in several:
        with pytest.raises(VitkitError, match="several images"):
            predictor.many(one)
    with pytest.raises(VitkitError, match="top is at least 1"):
        predictor("images/a/0.png", top=0)
    with pytest.raises(DecodeError, match="limit of 100"):
        vitkit.Predictor("model", max_pixels=100)("images/a/0.png")
    with pytest.raises(VitkitError, match="max_pixels must be at least 1"):
        vitkit.Predictor("model", max_pixels=0)


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in cli.VERBS:
        assert run([verb, "--help"]) == 0
        assert "usage" in capsys.readouterr().out
