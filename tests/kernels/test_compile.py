"""Kernels are compiled once and safely, and where they cannot be had there is a reason and no error."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vitkit.kernels import compile as compiling
from vitkit.kernels.compile import Source, load

TEXT = "int answer(void) { return 42; }\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Source:
    """A C file, and an empty cache."""
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("no C compiler")
    monkeypatch.delenv(compiling.SWITCH, raising=False)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text(TEXT)
    return Source(path, ("-O1",))


def answer(source: Source) -> int:
    library = load(source, compile_it=True).library
    assert library is not None
    return int(library.answer())


def kept(source: Source) -> list[Path]:
    return sorted((source.path.parent / "cache").glob("compiled-*/*"))


def test_a_library_is_kept_for_its_owner_alone_and_found_again(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(source, compile_it=False).reason == "it has not been compiled yet"
    assert answer(source) == 42
    (library,) = kept(source)  # and nothing half made beside it
    assert library.stat().st_mode & 0o077 == library.parent.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("it is compiled again"))
    assert answer(source) == 42


@pytest.mark.parametrize("changed", ["text", "flags", "compiler", "processor"])
def test_whatever_decides_its_contents_decides_its_name(
    source: Source, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiling._library_path(source)
    if changed == "text":
        source.path.write_text(TEXT.replace("42", "43"))
    elif changed == "flags":
        source = replace(source, flags=("-O2",))
    elif changed == "compiler":
        monkeypatch.setattr(compiling, "_compiler_version", lambda: b"another one")
    else:
        monkeypatch.setattr(compiling, "_processor", lambda: "another one")
    assert compiling._library_path(source) != first


@pytest.mark.parametrize("damage", ["cut short", "a changed byte", "empty", "zeros"])
def test_a_damaged_library_is_made_again_and_never_loaded(source: Source, damage: str) -> None:
    """In a process of its own each time, for a library cut short may end the one that loads it."""
    script = (
        "import sys; from pathlib import Path; from vitkit.kernels.compile import Source, load; "
        "print(load(Source(Path(sys.argv[1]), ('-O1',)), compile_it=True).library.answer())"
    )
    command = [sys.executable, "-c", script, str(source.path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"
    (library,) = kept(source)
    contents = library.read_bytes()
    middle = len(contents) // 2
    library.write_bytes(
        {
            "cut short": contents[:4096],
            "a changed byte": contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :],
            "empty": b"",
            "zeros": bytes(len(contents)),
        }[damage]
    )
    assert load(source, compile_it=False).library is None
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "42\n"
    assert [path.read_bytes() for path in kept(source)] == [contents]


def test_processes_that_compile_at_once_all_get_the_library(source: Source) -> None:
    script = (
        "import sys; from pathlib import Path; from vitkit.kernels.compile import Source, load; "
        "print(load(Source(Path(sys.argv[1]), ('-O1',)), compile_it=True).library.answer())"
    )
    command = [sys.executable, "-c", script, str(source.path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    assert [process.communicate()[0] for process in running] == ["42\n"] * 4
    assert len(kept(source)) == 1


@pytest.mark.parametrize("entry", ["file", "folder", "link"])
def test_what_others_can_write_is_neither_run_nor_replaced(
    source: Source, entry: str, tmp_path: Path
) -> None:
    answer(source)
    (library,) = kept(source)
    if entry == "link":  # links are writable by everybody, and lead anywhere
        library.rename(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        (library if entry == "file" else library.parent).chmod(0o777)
    found = load(source, compile_it=True)
    assert found.library is None and "can write to" in found.reason


def test_the_environment_switches_kernels_off(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiling.SWITCH, "1")
    assert load(source, compile_it=True) == compiling.Built(None, "VITKIT_NO_KERNELS is set")
    assert not kept(source)
    monkeypatch.setenv(compiling.SWITCH, "0")
    assert answer(source) == 42


def test_no_compiler_is_a_reason(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    assert load(source, compile_it=True).reason == "there is no C compiler (no-such-compiler)"
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert load(source, compile_it=True).reason == "there is no C compiler (cc or gcc or clang)"


def test_a_program_that_does_not_compile_is_a_reason(source: Source) -> None:
    source.path.write_text("int answer(void) { return }\n")
    assert load(source, compile_it=True).reason.startswith("the compiler failed: ")
    assert not kept(source)


def test_a_processor_without_the_instructions_is_a_reason(source: Source) -> None:
    found = load(replace(source, features=frozenset({"avx9"})), compile_it=True)
    assert found.reason == "the processor has no avx9"


def test_a_cache_that_is_no_folder_is_a_reason(source: Source, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder is expected")
    assert "could not be compiled" in load(source, compile_it=True).reason


def test_a_full_disk_is_a_reason(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert "No space left" in load(source, compile_it=True).reason
    assert not kept(source)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_is_a_reason(source: Source, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    assert "Permission denied" in load(source, compile_it=True).reason
