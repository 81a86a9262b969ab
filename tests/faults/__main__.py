"""`python -m tests.faults`: see `scripts/test-faults`."""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path

from tests.faults.archives import Archives
from tests.faults.checkpoints import Checkpoints
from tests.faults.compiler import CompilerCache
from tests.faults.engine_bundles import EngineBundles
from tests.faults.entry import warm_up
from tests.faults.evaluations import Evaluations
from tests.faults.filesystem import Filesystem
from tests.faults.given_folders import Benchmarks, Parts, RunLists
from tests.faults.harness import GOOD, Kind, Tally, attack, describe_failure, try_case
from tests.faults.images import Images
from tests.faults.kernels import Kernels
from tests.faults.kills import Kills, StudyKills
from tests.faults.labels import Csv, LabelFiles, ParquetTables
from tests.faults.memory import Memory
from tests.faults.moved_runs import MovedRuns
from tests.faults.options import Options
from tests.faults.run_folders import RunFolders
from tests.faults.servers import Servers
from tests.faults.signals import Signals
from tests.helpers.ignored_signals import heed_ignored_signals

KINDS: tuple[Kind, ...] = (
    Images(),
    Checkpoints(),
    RunFolders(),
    Evaluations(),
    ParquetTables(),
    Csv(),
    LabelFiles(),
    Archives(),
    RunLists(),
    Parts(),
    Benchmarks(),
    Filesystem(),
    Signals(),
    Options(),
    Kills(),
    StudyKills(),
    MovedRuns(),
    Servers(),
    CompilerCache(),
    Kernels(),
    Memory(),
    EngineBundles(),
)


def given_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/test-faults", description="Attack vitkit and count what breaks."
    )
    names = [kind.name for kind in KINDS]
    parser.add_argument("--only", action="append", choices=names, metavar="KIND", help=", ".join(names))
    parser.add_argument("--count", type=int, help="cases of each kind; left out, a full run's")
    parser.add_argument(
        "--sample", action="store_true", help="a few cases of each kind, as scripts/test has them"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, action="append", help="try one case again, in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="record and kept cases")
    parser.add_argument("--again", action="store_true", help="forget the record of earlier calls")
    return parser.parse_args()


def table(tallies: list[Tally]) -> str:
    """One row for each kind."""
    names = (
        "tried",
        "in words",
        "right",
        "tracebacks",
        "wrong",
        "hangs",
        "lost",
        "beyond",
        "slowest",
        "growth",
    )
    lines = ["| kind | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for tally in tallies:
        counts = [tally.of(v) for v in ("words", "right", "traceback", "wrong", "hang", "lost", "beyond")]
        cells = [len(tally.outcomes), *counts, f"{tally.slowest:.1f} s", f"{tally.largest >> 20} MiB"]
        lines.append(f"| {tally.kind} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    given = given_options()
    chosen = [kind for kind in KINDS if not given.only or kind.name in given.only]
    work = given.work.resolve()
    heed_ignored_signals()  # what is attacked must not ignore what this process does
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # ends the processes, too
    if given.again:
        shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    if any(kind.forks_commands for kind in chosen):
        warm_up()
    tallies, start = [], time.monotonic()
    for kind in chosen:
        count = kind.count if given.count is None else given.count
        numbers = list(kind.sample if given.sample else range(count))
        if given.case:
            attack(kind, [], given.seed, work, 1, 0)  # prepares
            for number in given.case:
                outcome = try_case(kind, number, given.seed, work)
                print(f"{kind.name} {number}: {outcome.verdict}: {outcome.detail}")
                print(f"    {outcome.seconds:.1f} s, {outcome.growth >> 20} MiB, in {work / 'scratch'}")
                if outcome.verdict not in GOOD:
                    tallies.append(Tally(kind.name, {number: outcome}))
            continue
        tally = attack(kind, numbers, given.seed, work, given.jobs, given.seconds)
        tallies.append(tally)
        print(
            f"{kind.name}: {len(tally.outcomes)} of {len(numbers)}, {time.monotonic() - start:.0f} s so far",
            flush=True,
        )
    failures = [(tally.kind, n, outcome) for tally in tallies for n, outcome in tally.failures.items()]
    print(f"\n{len(failures)} failed:" if failures else "\nNone failed.")
    for name, number, outcome in failures:
        print(describe_failure(name, number, outcome, given.seed, work))
    print("\n" + table(tallies))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
