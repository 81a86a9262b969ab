"""Kernels are compiled once and safely, and where they cannot be had there is a reason and no error."""

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from vitkit.kernels import compile as compiling
from vitkit.kernels.compile import Source, load

TEXT = "int trial(void) { return 1; }\nint answer(void) { return 42; }\n"
LOAD = """
import sys
from pathlib import Path
from vitkit.kernels.compile import Source, load
library = load(Source(Path(sys.argv[1]), ("-O1",), "the answer", bool), compile_it=True).library"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A C file, and an empty cache."""
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    monkeypatch.delenv(compiling.SWITCH, raising=False)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text(TEXT)
    return Source(path, ("-O1",), "the answer", agrees)


def agrees(library: ctypes.CDLL) -> bool:
    return int(library.answer()) in (42, 43)


def answer(source: Source) -> int:
    library = load(source, compile_it=True).library
    assert library is not None
    return int(library.answer())


def cached_files(source: Source) -> list[Path]:
    """All that lies in the cache, but for what is remembered of failures."""
    files = (source.path.parent / "cache").glob("compiled-*/*")
    return sorted(path for path in files if path.suffix != ".failed")


class Compiler:
    """A compiler of a test's own: a shell script, which writes down how often it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.log = folder / "own-cc", folder / "calls"
        monkeypatch.setenv("CC", str(self.path))

    def does(self, command: str) -> None:
        self.path.write_text(f'#!/bin/sh\necho "$@" >> {self.log}\n{command}\n')
        self.path.chmod(0o755)

    @property
    def calls(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    return Compiler(tmp_path, monkeypatch)


def test_a_library_is_kept_for_its_owner_alone_and_found_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(source, compile_it=False).reason == "it has not been compiled yet"
    assert answer(source) == 42
    (library,) = cached_files(source)  # and nothing half made beside it
    assert library.stat().st_mode & 0o077 == library.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("it is compiled again"))
    assert answer(source) == 42


def test_whatever_decides_its_contents_decides_its_name(
    source: Source, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.does('exec cc "$@"')
    others = (replace(source, flags=("-O2",)), replace(source, original="the answer to another question"))
    paths = [compiling._place(each)[0] for each in (source, *others)]
    for change in (
        lambda: source.path.write_text(TEXT.replace("42", "43")),
        lambda: source.path.with_name("included.c").touch(),
        lambda: monkeypatch.setenv("CC", f"{compiler.path} -fsanitize=address"),
        lambda: os.utime(compiler.path, (1, 1)),
        lambda: monkeypatch.setattr(compiling, "_PROCESSOR_FIELDS", ("model name",)),
    ):
        change()
        paths.append(compiling._place(source)[0])
    assert len({*paths}) == 8


def test_a_damaged_library_or_one_never_tried_is_made_again_and_not_loaded(source: Source) -> None:
    """In a process of its own each time, for a library cut short may end the one that loads it."""
    command = [sys.executable, "-c", f"{LOAD}; print(library.answer())", str(source.path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0] for process in running] == ["42\n"] * 3  # that compile at once
    (library,) = cached_files(source)
    contents = library.read_bytes()
    middle, garbage = len(contents) // 2, b"\x7fELF and no more"
    damages = {
        "cut short": contents[:4096],
        "a changed byte": contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :],
        "empty": b"",
        "zeros": bytes(len(contents)),
        "sealed as others do": garbage + hashlib.sha256(garbage).digest(),
        "sealed with the name": garbage + compiling._hash(library.name.encode(), garbage),
    }
    for damage, damaged in damages.items():
        library.write_bytes(damaged)
        assert load(source, compile_it=False).library is None, damage
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n", damage
        assert [path.read_bytes() for path in cached_files(source)] == [contents]
    other = replace(source, flags=("-O2",))
    shutil.copy2(library, compiling._place(other)[0])  # a library under another's name
    assert load(other, compile_it=False).library is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#include <stdlib.h>\n__attribute__((constructor)) void begin(void) { _Exit(3); }", "exit code 3"),
        ("__attribute__((constructor)) void begin(void) { __builtin_trap(); }", "signal 4"),
        ("void elsewhere(void);\nvoid begin(void) { elsewhere(); }", "undefined symbol: elsewhere"),
        ('void begin(void) { for (;;) __asm__("pause"); }', "did not end within"),
    ],
)
def test_a_library_that_cannot_live_is_a_reason_and_ends_nothing(
    source: Source, text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.path.write_text(f"{text}\nint trial(void) {{ begin(); return 1; }}\n")
    if "within" in message:
        monkeypatch.setattr(compiling, "TIMEOUT", 1)
        monkeypatch.setattr(compiling, "LONGEST_TIMEOUT", 2)
    reason = load(source, compile_it=True).reason
    assert message in reason and reason.startswith("the trial of what was compiled ")
    assert not cached_files(source)
    monkeypatch.setattr(compiling, "_run", lambda *_: pytest.fail("it is tried again"))
    assert load(source, compile_it=True).reason.startswith(reason)


@pytest.mark.parametrize("entry", ["file", "folder", "link"])
def test_what_others_can_write_is_neither_run_nor_replaced(
    source: Source, entry: str, tmp_path: Path
) -> None:
    answer(source)
    (library,) = cached_files(source)
    if entry == "link":  # links are writable by everybody, and lead anywhere
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        (library if entry == "file" else library.parent).chmod(0o777)
    loaded = load(source, compile_it=True)
    assert loaded.library is None and "can write to" in loaded.reason


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"CC": "no-such-compiler -m64"}, "there is no C compiler (no-such-compiler)"),
        ({"CC": "", "PATH": ""}, "there is no C compiler (cc or gcc or clang)"),
        ({"CC": 'gcc "'}, "CC is no command (No closing quotation): 'gcc \"'"),
        ({compiling.SWITCH: "1"}, "VITKIT_NO_KERNELS is set"),
        # Even where it would load: the variables that let it are not those of the next process.
        ({"CC": "cc -fsanitize=address", "ASAN_OPTIONS": "verify_asan_link_order=0"}, "the trial of what"),
    ],
)
def test_an_environment_without_a_compiler_is_a_reason_and_leaves_the_next_one_alone(
    source: Source, environment: dict[str, str], reason: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        loaded = load(source, compile_it=True)
        assert loaded.library is None and loaded.reason.startswith(reason) and not cached_files(source)
    assert answer(source) == 42


def test_whatever_else_is_in_the_way_is_a_reason(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    loaded = load(replace(source, features=frozenset({"avx9"})), compile_it=True)
    assert loaded.reason == "the processor has no avx9"
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        assert "No space left" in load(source, compile_it=True).reason
    source.path.write_text("int answer(void) { return }\n")
    assert load(source, compile_it=True).reason.startswith("the compiler failed: ")
    assert not cached_files(source)
    monkeypatch.setenv("VITKIT_CACHE", str(source.path))  # a file where a folder is expected
    assert "could not be compiled" in load(source, compile_it=True).reason


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_a_reason(source: Source, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    assert "Permission denied" in load(source, compile_it=True).reason


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("exit 7", "the compiler failed: exit code 7"),
        ("echo first; echo the error 1>&2; exit 1", "the compiler failed: the error"),
        ("sleep 100 & echo $! > $0.child; sleep 100", "the compiler did not end within"),
        ("sleep 100 & exit 0", "the trial of what was compiled failed: "),
        ("exec yes", "the compiler failed: signal 25"),
    ],
)
def test_a_compiler_that_fails_or_hangs_is_called_once_for_a_file(
    source: Source, compiler: Compiler, command: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "within" in message:
        monkeypatch.setattr(compiling, "TIMEOUT", 0.5)
    compiler.does(command)
    reason = load(source, compile_it=True).reason
    assert reason.startswith(message)
    assert load(source, compile_it=True).reason.startswith(reason)
    assert compiler.calls == 1
    if "within" in message:  # what it has started ends with it, and it is not given another file
        assert "did not end within" in load(replace(source, flags=("-O2",)), compile_it=True).reason
        assert compiler.calls == 1 and not cached_files(source)
        status = Path("/proc", compiler.path.with_name("own-cc.child").read_text().strip(), "stat")
        deadline = time.monotonic() + 600  # the signal is on its way
        while status.exists() and status.read_text().split()[2] != "Z" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not status.exists() or status.read_text().split()[2] == "Z"


@pytest.mark.parametrize("change", ["the compiler", "its words", "a day", "the file"])
def test_a_failure_is_forgotten_where_something_changed(
    source: Source, compiler: Compiler, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler.does('[ -e "$0.works" ] && exec cc "$@"; exit 1')
    assert load(source, compile_it=True).library is None
    compiler.path.with_name("own-cc.works").touch()
    (record,) = (source.path.parent / "cache").glob("compiled-*/*.failed")
    assert f"(remove {record} to have it tried again)" in load(source, compile_it=True).reason
    if change == "the compiler":
        os.utime(compiler.path, (1, 1))
    elif change == "its words":
        monkeypatch.setenv("CC", f"{compiler.path} -O0")
    elif change == "a day":
        os.utime(record, (record.stat().st_mtime - compiling.REMEMBERED - 1,) * 2)
    else:
        record.unlink()
    assert answer(source) == 42


@pytest.mark.parametrize("suffix", [".so", ".failed"])
def test_what_is_no_library_under_its_name_is_a_reason_or_made_again(source: Source, suffix: str) -> None:
    path = compiling._place(source)[0].with_suffix(suffix)
    path.parent.mkdir(mode=0o700, parents=True)
    os.mkfifo(path, 0o600)
    assert load(source, compile_it=True).reason == f"{path} is not a file"
    path.unlink()
    path.mkdir(0o700)
    assert load(source, compile_it=True).reason == f"{path} is not a file"
    path.rmdir()
    path.touch(0o600)
    os.truncate(path, 40 << 30)
    assert answer(source) == 42


def test_what_killed_compilations_leave_is_swept_after_a_day(source: Source, compiler: Compiler) -> None:
    compiler.does("kill -9 $PPID")
    ended = subprocess.run([sys.executable, "-c", LOAD, source.path], capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    (left,) = cached_files(source)
    compiler.does('exec cc "$@"')
    (left.parent / "old.failed").touch()
    (left.parent / "young.failed").touch()
    assert answer(source) == 42
    assert left in cached_files(source)  # its process may live on another machine
    for path in (left, left.parent / "old.failed"):
        os.utime(path, (1, 1))
    assert answer(replace(source, flags=("-O2",))) == 42
    assert [path.suffix for path in cached_files(source)] == [".so", ".so"]
    assert [path.name for path in left.parent.glob("*.failed")] == ["young.failed"]


def test_a_library_that_gives_other_values_is_never_used(source: Source) -> None:
    """Nor another time, in which neither is it compiled nor are its values compared."""
    compared: list[ctypes.CDLL] = []

    def disagrees(library: ctypes.CDLL) -> bool:
        compared.append(library)
        return False

    wrong = replace(source, agrees=disagrees)
    for _ in range(2):
        loaded = load(wrong, compile_it=True)
        assert loaded.library is None
        assert loaded.reason.startswith("it computes other values than the answer")
        assert load(wrong, compile_it=False).library is None
    assert len(compared) == 1 and not cached_files(source)
