"""`python -m tests.mutants`: see `scripts/test-mutants`."""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from tests.helpers.guard.watch_files import TEMPORARY
from tests.mutants.generated import Mutant, draw
from tests.mutants.recording import REPORT

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src/vitkit")
LEFT_ALONE = ("faults", "mutants", "peers", "test_architecture.py", "test_docs.py")
"""Tests that attack by themselves, or read the source and run none of it."""
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


@dataclass(frozen=True)
class Recorded:
    """The tests as they ran on the unbroken tree."""

    tests: dict[str, float]
    """The seconds of those that passed, by name."""
    lines: dict[str, dict[str, list[str]]]
    """By file below the source folder and by line, the tests that run it, in whatever process."""


def files_of(root: Path) -> list[Path]:
    """List the files of a tree that git has, or would take."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in sorted({*names.split("\0")[:-1]}) if (root / name).is_file()]


def digest_of(root: Path) -> str:
    """Hash all sources and tests, but for what makes the mutants."""
    digest = hashlib.sha256()
    for path in files_of(root):
        if path.parts[0] in ("src", "tests") and path.parts[1] != "mutants":
            digest.update(f"{path}\0".encode() + (root / path).read_bytes())
    return digest.hexdigest()[:16]


class Runner:
    """Tries mutants on a copy of a tree.

    Args:
        root: the tree that is copied.
        work: keeps what was recorded of tests, and logs.
        copy: an empty folder.
        seconds: for the tests of one mutant, at most.
    """

    def __init__(
        self, root: Path, work: Path, copy: Path, package: Path = PACKAGE, seconds: float = 600
    ) -> None:
        self.work, self.tree, self.scratch, self.seconds = work, copy / "tree", copy / "scratch", seconds
        self.package, self.digest = self.tree / package, digest_of(root)
        for path in files_of(root):
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / path, self.tree / path)

    def try_mutant(self, mutant: Mutant) -> Result:
        """Run the tests of a mutant's line with it until one fails; the copy is as it was afterwards."""
        from cosmic_ray.mutating import mutate_and_test
        from cosmic_ray.work_item import MutationSpec, TestOutcome

        tests = self._tests_of(mutant)
        if not tests:
            return Result(mutant.name, "survived", "no test runs the line")
        self.scratch.mkdir()
        (self.scratch / "tests").write_text("\n".join(tests))
        path, place = self.package / mutant.file, ((mutant.line, 0), (mutant.line, 1))
        spec = MutationSpec(path, f"core/{mutant.operator}", mutant.occurrence, *place)
        settings = (f"TMPDIR={self.scratch}", f"PYTHONPATH={self.tree / 'src'}")
        command = ("env", "-C", self.tree, *settings, sys.executable, "-m", "pytest", "-x", "-n", "0")
        more = ("-p", "no:cacheprovider", "--timeout=0", f"@{self.scratch / 'tests'}")
        ended = mutate_and_test([spec], shlex.join(map(str, (*command, *more))), self.seconds)
        shutil.rmtree(self.scratch)
        assert ended.test_outcome != TestOutcome.INCOMPETENT, ended.output
        log = self.work / "logs" / f"{mutant.name.replace('/', '-')}.txt"
        log.parent.mkdir(exist_ok=True)
        log.write_text(ended.output)
        if ended.test_outcome == TestOutcome.SURVIVED:
            return Result(mutant.name, "survived", f"{len(tests)} tests passed")
        if ended.output == "timeout":
            unbroken = sum(self._recorded.tests[test] for test in tests)
            verdict = "noticed" if 3 * unbroken < self.seconds else "undecided"
            return Result(mutant.name, verdict, f"by the time limit: {unbroken:.0f} s without it")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", ended.output, re.MULTILINE)
        return Result(mutant.name, "noticed", f"by {failed[1] if failed else 'a crash'}")

    def _tests_of(self, mutant: Mutant) -> list[str]:
        """List the tests that run the line, those of its room and of quick files first.

        What runs at import alone, or in a fixture for another test, is not recorded: the other tests of these
        files and those of the file's own name come last.
        """
        passed, room = self._recorded.tests, f"tests/{mutant.room}/"
        run = {*self._recorded.lines.get(mutant.file, {}).get(str(mutant.line), [])}
        files = {test.partition("::")[0] for test in run if test.startswith(room)}
        own = f"/test_{Path(mutant.file).stem}.py"
        others = {test for test in passed if (file := test.partition("::")[0]) in files or file.endswith(own)}
        seconds = defaultdict[str, float](float)
        for test in run | others:
            seconds[test.partition("::")[0]] += passed[test]

        def order(test: str) -> tuple[bool, bool, float, str]:
            file = test.partition("::")[0]
            return test not in run, not file.startswith(room), seconds[file], file

        return sorted(run | others, key=order)

    @cached_property
    def _recorded(self) -> Recorded:
        """The lines that each test runs, recorded now if sources or tests have changed since."""
        record = self.work / "recorded.json"
        if record.exists():
            data = json.loads(record.read_text())
            if data.pop("tree") == self.digest:
                return Recorded(**data)
        print("  recording which lines each test runs", flush=True)
        recorded = self._record(self.work / "recording")
        record.write_text(json.dumps({"tree": self.digest, **asdict(recorded)}))
        return recorded

    def _record(self, folder: Path) -> Recorded:
        """Run all tests under coverage."""
        import coverage

        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        settings, seconds = folder / "settings", folder / "seconds"
        settings.write_text(COVERAGE.format(package=self.package, data=folder / "data"))
        changed = {
            "PYTHONPATH": os.pathsep.join(map(str, (self.tree / "src", Path(__file__).parent))),
            REPORT: str(seconds),
            TEMPORARY: str(folder),  # each test would fail by what is recorded of it
        }
        command = (
            *("coverage", "run", f"--rcfile={settings}", "-m"),
            *("pytest", "-q", "-p", "recording", "-n", "auto", "--dist", "worksteal"),
            *(f"--ignore=tests/{name}" for name in LEFT_ALONE),
        )
        with (folder / "output").open("w") as output:
            line, environment = [sys.executable, "-m", *command], os.environ | changed
            subprocess.run(line, cwd=self.tree, env=environment, stdout=output, stderr=output)
        took, failed = defaultdict[str, float](float), set()
        for name, part, passed in map(json.loads, seconds.read_text().splitlines()):
            took[name] += part
            failed |= set() if passed else {name}
        tests = {name: took[name] for name in took if name not in failed}
        measured = coverage.Coverage(config_file=str(settings))
        measured.combine()
        data, lines = measured.get_data(), dict[str, dict[str, list[str]]]()
        for file in data.measured_files():
            run = data.contexts_by_lineno(file)
            lines[str(Path(file).relative_to(self.package))] = {
                str(line): sorted({*contexts} & {*tests}) for line, contexts in run.items()
            }
        return Recorded(tests, lines)


def read_results(path: Path, tree: str) -> dict[str, Result]:
    """Read the results of earlier calls on the same tree by name; the last of each mutant counts."""
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    results = [Result(**fields) for fields in lines if fields.pop("tree") == tree]
    return {result.name: result for result in results}


def try_all(runner: Runner, chosen: Sequence[Mutant], seconds: float, again: bool) -> list[Result]:
    """Try the mutants that have no verdict yet, or all of them `again`; a line for each that is tried.

    None is begun after so many seconds; what that leaves out has no result.
    """
    record = runner.work / "results.jsonl"
    results = {} if again else read_results(record, runner.digest)
    end = time.monotonic() + seconds
    for mutant in chosen:
        before = results.get(mutant.name)
        if (before is None or before.verdict == "undecided") and time.monotonic() < end:
            result = results[mutant.name] = runner.try_mutant(mutant)
            with record.open("a") as file:
                file.write(json.dumps({"tree": runner.digest, **asdict(result)}) + "\n")
            print(f"{mutant.name}: {result.verdict}: {result.detail}", flush=True)
    return [results[mutant.name] for mutant in chosen if mutant.name in results]


def given_options(rooms: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/test-mutants", description="Break lines one by one and see whether a test notices."
    )
    parser.add_argument("--only", action="append", choices=rooms, metavar="ROOM", help=", ".join(rooms))
    parser.add_argument("--each", type=int, default=300, metavar="N", help="places in each room")
    parser.add_argument("--seed", type=int, default=0, help="the same one draws the same mutants")
    parser.add_argument("--mutant", action="append", metavar="NAME", help="try this one, once more")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no mutant after so many")
    parser.add_argument("--limit", type=float, default=600, help="seconds for the tests of one mutant")
    parser.add_argument("--work", type=Path, default=Path("runs/mutants"), help="results, recorded lines")
    return parser.parse_args()


def main() -> int:
    rooms = sorted([*(path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")), "leaves"])
    given = given_options(rooms)
    chosen = list(draw(ROOT / PACKAGE, given.only or rooms, given.each, given.seed))
    if given.mutant:
        chosen = [mutant for mutant in chosen if mutant.name in given.mutant]
        if unknown := {*given.mutant} - {mutant.name for mutant in chosen}:
            sys.exit(f"No mutant of these rooms and this seed is named {', '.join(sorted(unknown))}.")
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    # However it is ended, the copy is removed. In what a shell starts in the background Ctrl-C is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="vitkit-mutants-") as copy:
        runner = Runner(ROOT, work, Path(copy), seconds=given.limit)
        tried = try_all(runner, chosen, given.seconds, bool(given.mutant))
    verdicts = {result.name: result.verdict for result in tried}
    for room in rooms:
        counts = Counter(verdicts.get(mutant.name) for mutant in chosen if mutant.room == room)
        if judged := counts["noticed"] + counts["survived"]:
            score = counts["noticed"] / judged
            print(f"{room:<12}{score:>7.1%} of {judged:,} noticed, {counts['undecided']:,} undecided")
    for result in tried:
        if result.verdict != "noticed":
            print(f"{result.verdict}: {result.name}: {result.detail}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
