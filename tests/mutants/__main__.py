"""`python -m tests.mutants`: see `scripts/test-mutants`."""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from tests.helpers.guard.watch_files import TEMPORARY
from tests.mutants.forked_tests import Ended, run_tests, warm_up
from tests.mutants.generated import Mutant, draw, room_of
from tests.mutants.recording import REPORT

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src/vitkit")
STARTERS = ("subprocess", "without_torch", "multiprocessing")
"""Words of test files that start other processes."""
LEFT_OUT = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info")
"""Names of what is not copied, and does not decide what tests do."""
MADE = {"runs", "dist", "build"}
"""Folders that commands make in the root, and no others: `runs` is a room of the source too."""
LEFT_ALONE = ("faults", "mutants", "peers", "test_architecture.py", "test_docs.py")
"""Tests that attack by themselves, or read the source and run none of it."""
AT_ONCE = 40
"""Tests that one process runs. Starting another one costs seconds."""
COVERAGE = """\
[run]
source = {package}
data_file = {data}
parallel = true
patch =
    subprocess
disable_warnings = no-data-collected, module-not-imported, module-not-measured
"""
"""The settings of coverage, whose contexts are tests: `recording.py` names them."""


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    name: str
    verdict: str
    """noticed, survived or undecided."""
    detail: str
    seconds: float


@dataclass(frozen=True)
class Recorded:
    """The tests as they ran on the unbroken tree."""

    tests: dict[str, tuple[float, bool]]
    """By name, their seconds and whether they passed."""
    lines: dict[str, dict[str, list[str]]]
    """By file below the source folder and by line, the tests that run it in their own process."""


class Runner:
    """Tries mutants on a copy of a tree.

    Args:
        root: the tree that is copied.
        work: keeps what was recorded of tests, compiled kernels and logs.
        copy: an empty folder.
        seconds: for the tests of one mutant, at most.
    """

    def __init__(
        self, root: Path, work: Path, copy: Path, package: Path = PACKAGE, seconds: float = 600
    ) -> None:
        self.work, self.copy, self.package, self.seconds = work, copy / "tree", package, seconds
        self.scratch, by_name = copy / "scratch", shutil.ignore_patterns(*LEFT_OUT)

        def left_out(folder: str, names: list[str]) -> set[str]:
            made = MADE & set(names) if Path(folder) == root else set()
            return by_name(folder, names) | made

        shutil.copytree(root, self.copy, ignore=left_out, symlinks=True)
        os.environ["VITKIT_CACHE"] = str(work / "cache")  # of kernels: a mutant's stay out of the user's own

    def try_mutant(self, mutant: Mutant) -> tuple[str, str]:
        """Return verdict and detail of a mutant; the copy is as it was afterwards."""
        path = self.copy / self.package / mutant.file
        source = path.read_text()
        text = mutant.apply(source)
        left, tried = self.seconds, 0
        for tests in self._batches(mutant):
            while tests:
                _mutate(path, text)
                try:
                    ended = run_tests(self.copy, self.scratch, tests, left, keep_code=False)
                finally:
                    _mutate(path, source)
                log = self.work / "logs" / f"{mutant.name.replace('/', '-')}.txt"
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text(ended.output)
                left -= ended.seconds
                tried += len(ended.passed)
                if ended.out_of_time:
                    return self._judge_hanging(tests, ended)
                if not ended.failed:
                    break
                if self._passes_unbroken(tests, ended):
                    way = {"test": "by", "crash": "by a crash in", "import": "by the import in"}[ended.how]
                    return "noticed", f"{way} {ended.failed}"
                # It fails on this machine anyway: the others are asked.
                tests = [test for test in tests if test not in (*ended.passed, ended.failed)]
            if left <= 0:
                return "undecided", f"{tried} tests passed in {self.seconds:.0f} s, and more run the line"
        return "survived", f"{tried} tests passed" if tried else "no test runs the line"

    def _passes_unbroken(self, tests: Sequence[str], ended: Ended) -> bool:
        """Whether what failed passes without the mutant."""
        if ended.how == "test" and self._recorded.tests.get(ended.failed, (0.0, False))[1]:
            return True
        suspects = [ended.failed] if "::" in ended.failed else tests
        return not run_tests(self.copy, self.scratch, suspects, self.seconds, keep_code=True).failed

    def _judge_hanging(self, tests: Sequence[str], ended: Ended) -> tuple[str, str]:
        """Call a mutant noticed by the time limit only if the time would have been enough three times."""
        unbroken = run_tests(self.copy, self.scratch, tests, ended.seconds / 3, keep_code=True)
        if unbroken.out_of_time or unbroken.failed:
            return "undecided", f"out of time after {ended.seconds:.0f} s, and the tests are slow without it"
        return "noticed", f"by the time limit: {ended.seconds:.0f} s, {unbroken.seconds:.0f} s without it"

    def _batches(self, mutant: Mutant) -> Iterator[list[str]]:
        """Yield the tests that run the line, those of its room first, quick ones first."""
        recorded, room = self._recorded, f"tests/{room_of(mutant.file)}/"
        run = recorded.lines.get(mutant.file, {}).get(str(mutant.line), [])
        near = [test for test in run if test.startswith(room)]
        others = [test for test in run if not test.startswith(room)]
        yield from _in_batches({test: recorded.tests[test][0] for test in near})
        yield from _in_batches({test: recorded.tests[test][0] for test in others})
        # What runs in other processes, at import alone, or in a fixture for another test, is not recorded.
        stem, seen = Path(mutant.file).stem, {*run}
        files = {test.partition("::")[0] for test in near}
        for path in sorted((self.copy / "tests").rglob("test_*.py")):
            inside = path.relative_to(self.copy / "tests")
            is_own = inside.parts[0] == room_of(mutant.file) or len(inside.parts) == 1
            starts = any(word in path.read_text() for word in STARTERS)
            if is_own and (starts or path.name == f"test_{stem}.py") and inside.parts[0] not in LEFT_ALONE:
                files.add(str(path.relative_to(self.copy)))
        left = {test: took[0] for test, took in recorded.tests.items() if test.partition("::")[0] in files}
        yield from _in_batches({test: took for test, took in left.items() if test not in seen})

    @cached_property
    def _recorded(self) -> Recorded:
        """The lines that each test runs, recorded now if sources or tests have changed since."""
        record, tree = self.work / "recorded.json", tree_digest(self.copy)
        if record.exists():
            data = json.loads(record.read_text())
            if data.pop("tree") == tree:
                return Recorded(**data)
        print("  recording which lines each test runs", flush=True)
        recorded = self._record(self.work / "recording")
        record.write_text(json.dumps({"tree": tree, **vars(recorded)}))
        return recorded

    def _record(self, folder: Path) -> Recorded:
        """Run all tests under coverage."""
        import coverage

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        source, settings, seconds = self.copy / self.package, folder / "settings", folder / "seconds"
        settings.write_text(COVERAGE.format(package=source, data=folder / "data"))
        changed = {
            "PYTHONPATH": os.pathsep.join(map(str, (self.copy / "src", self.copy, Path(__file__).parent))),
            REPORT: str(seconds),
            TEMPORARY: str(folder),  # each test would fail by what is recorded of it
        }
        command = (
            *("coverage", "run", f"--rcfile={settings}", "-m"),
            *("pytest", "-q", "-p", "recording", "-n", "auto", "--dist", "worksteal"),
            *(f"--ignore=tests/{name}" for name in LEFT_ALONE),
        )
        with (folder / "output").open("w") as output:
            subprocess.run(
                [sys.executable, "-m", *command],
                cwd=self.copy,
                env=os.environ | changed,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        tests = dict[str, tuple[float, bool]]()
        for name, took, passed in map(json.loads, seconds.read_text().splitlines()):
            before = tests.get(name, (0.0, True))
            tests[name] = before[0] + took, before[1] and passed
        measured = coverage.Coverage(config_file=str(settings))
        measured.combine()
        data, lines = measured.get_data(), dict[str, dict[str, list[str]]]()
        for file in data.measured_files():
            run = data.contexts_by_lineno(file)
            lines[str(Path(file).relative_to(source))] = {
                str(line): sorted({*contexts} & {*tests}) for line, contexts in run.items()
            }
        return Recorded(tests, lines)


def _mutate(path: Path, text: str) -> None:
    """Write a source without leaving compiled code of another one, which Python tells by time and size."""
    path.write_text(text)
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def _in_batches(seconds: dict[str, float]) -> Iterator[list[str]]:
    """Yield tests, given with their seconds, quick ones first; in a batch those of a file stand together."""
    ordered = sorted(seconds, key=seconds.__getitem__)
    for start in range(0, len(ordered), AT_ONCE):  # what the tests of a file share is made once
        yield sorted(ordered[start : start + AT_ONCE], key=lambda test: test.partition("::")[0])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def tree_digest(root: Path) -> str:
    """Hash all sources and tests, but for what makes the mutants."""
    digest = hashlib.sha256()
    for folder in ("src", "tests"):
        for path in sorted((root / folder).rglob("*")):
            inside = path.relative_to(root)
            if path.is_file() and "__pycache__" not in inside.parts and inside.parts[1] != "mutants":
                digest.update(f"{inside}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def read_results(path: Path, tree: str) -> dict[str, Result]:
    """Read the results of earlier calls on the same tree by name; the last of each mutant counts."""
    results: dict[str, Result] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        if fields.pop("tree") == tree:
            results[fields["name"]] = Result(**fields)
    return results


def try_all(
    runner: Runner, chosen: Sequence[Mutant], record: Path, tree: str, seconds: float, again: bool
) -> list[Result]:
    """Try the mutants that have no result yet, or all of them `again`; a line for each that is tried.

    None is begun after so many seconds; what that leaves out has no result.
    """
    before, results = {} if again else read_results(record, tree), []
    end = time.monotonic() + seconds
    for mutant in chosen:
        result = before.get(mutant.name)
        if result is None or result.verdict == "undecided":
            if time.monotonic() > end:
                continue
            start = time.monotonic()
            verdict, detail = runner.try_mutant(mutant)
            result = Result(mutant.name, verdict, detail, round(time.monotonic() - start, 1))
            with record.open("a") as file:
                file.write(json.dumps({"tree": tree, **asdict(result)}) + "\n")
            print(f"{mutant.name}: {verdict}: {detail} ({result.seconds:.0f} s)", flush=True)
        assert result is not None
        results.append(result)
    return results


def given_options(rooms: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/test-mutants", description="Break lines one by one and see whether a test notices."
    )
    parser.add_argument("--only", action="append", choices=rooms, metavar="ROOM", help=", ".join(rooms))
    parser.add_argument("--each", type=int, default=300, metavar="N", help="places in each room")
    parser.add_argument("--seed", type=int, default=0, help="the same one draws the same mutants")
    parser.add_argument("--mutant", action="append", metavar="NAME", help="try this one, once more")
    parser.add_argument("--list", action="store_true", help="list the mutants and what is known of them")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one mutant")
    parser.add_argument("--work", type=Path, default=Path("runs/mutants"), help="results, recorded lines")
    parser.add_argument("--again", action="store_true", help="forget the results of earlier calls")
    return parser.parse_args()


def main() -> int:
    folders = [path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")]
    rooms = sorted([*folders, "leaves"])
    given = given_options(rooms)
    chosen = list(draw(ROOT / PACKAGE, given.only or rooms, given.each, given.seed))
    if unknown := {*(given.mutant or ())} - {mutant.name for mutant in chosen}:
        print(f"No mutant is named {', '.join(sorted(unknown))}: --list names them.", file=sys.stderr)
        return 2
    if given.mutant:
        chosen = [mutant for mutant in chosen if mutant.name in given.mutant]
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    record, tree = work / "results.jsonl", tree_digest(ROOT)
    if given.again:
        record.unlink(missing_ok=True)
    if given.list:
        recorded = read_results(record, tree)
        for mutant in chosen:
            verdict = recorded[mutant.name].verdict if mutant.name in recorded else "not tried yet"
            print(f"{mutant.name} [{verdict}]")
        print(f"{len(chosen)} mutants")
        return 0
    # However it is ended, the copy is removed. In what a shell starts in the background Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    warm_up()
    with tempfile.TemporaryDirectory(prefix="vitkit-mutants-") as copy:
        runner = Runner(ROOT, work, Path(copy), seconds=given.limit)
        results = try_all(runner, chosen, record, tree, given.seconds, bool(given.mutant))
    for room in rooms:
        counts = Counter(result.verdict for result in results if room_of(result.name) == room)
        if judged := counts["noticed"] + counts["survived"]:
            score = counts["noticed"] / judged
            print(f"{room:<12}{score:>7.1%} of {judged:,} noticed, {counts['undecided']:,} undecided")
    for result in results:
        if result.verdict != "noticed":
            print(f"{result.verdict}: {result.name}: {result.detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
