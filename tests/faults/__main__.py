"""`python -m tests.faults`: see `scripts/test-faults`."""

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import get_args

from tests.faults.archives import Archives
from tests.faults.checkpoints import Checkpoints, EngineBundles
from tests.faults.entry import warm_up
from tests.faults.filesystem import Filesystem
from tests.faults.harness import GOOD, Kind, Outcome, Verdict, attack, try_case
from tests.faults.images import Images
from tests.faults.kills import Kills, StudyKills
from tests.faults.run_folders import RunFolders
from tests.faults.signals import Signals
from tests.helpers.ignored_signals import heed_ignored_signals

KINDS: tuple[Kind, ...] = (
    Images(),
    Checkpoints(),
    EngineBundles(),
    Archives(),
    RunFolders(),
    Filesystem(),
    Signals(),
    Kills(),
    StudyKills(),
)


def given_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/test-faults", description="Attack vitkit and count what breaks."
    )
    names = [kind.name for kind in KINDS]
    parser.add_argument("--only", action="append", choices=names, metavar="KIND", help=", ".join(names))
    parser.add_argument("--count", type=int, help="cases of each kind; left out, a full run's")
    parser.add_argument("--sample", action="store_true", help="a few cases of each kind, as scripts/test has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, action="append", help="try one case again, in this process")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at a time")
    parser.add_argument("--work", type=Path, default=Path("runs/faults"), help="record and kept cases")
    parser.add_argument("--again", action="store_true", help="forget the record of earlier calls")
    return parser.parse_args()


def table(outcomes: dict[str, dict[int, Outcome]]) -> str:
    """One row for each kind."""
    verdicts = get_args(Verdict)
    names = ("kind", "tried", *verdicts, "slowest", "growth")
    lines = [f"| {' | '.join(names)} |", "|" + " --- |" * len(names)]
    for kind, by_number in outcomes.items():
        cases = by_number.values()
        counts = [sum(case.verdict == verdict for case in cases) for verdict in verdicts]
        slowest = max((case.seconds for case in cases), default=0.0)
        growth = max((case.growth for case in cases), default=0)
        cells = [kind, len(cases), *counts, f"{slowest:.1f} s", f"{growth >> 20} MiB"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def describe_failure(kind: str, number: int, outcome: Outcome, seed: int, work: Path) -> str:
    """A failure in three lines: what it is, the command that tries it again, and where its files are."""
    places = (work / place / f"{kind}-{number}" for place in ("failures", "scratch"))
    where = next((str(place) for place in places if place.exists()), "nothing was left")
    again = f"scripts/test-faults --only {kind} --seed {seed} --case {number}"
    return f"{kind} {number}: {outcome.verdict}: {outcome.detail.strip()}\n    {again}\n    {where}"


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
    outcomes, start = dict[str, dict[int, Outcome]](), time.monotonic()
    for kind in chosen:
        if given.case:
            attack(kind, [], given.seed, work, 1, 0)  # prepares
            outcomes[kind.name] = {number: try_case(kind, number, given.seed, work) for number in given.case}
            for number, case in outcomes[kind.name].items():
                print(f"{kind.name} {number}: {case.verdict}: {case.detail}, in {work / 'scratch'}")
            continue
        numbers = list(kind.sample if given.sample else range(given.count or kind.count))
        tried = attack(kind, numbers, given.seed, work, given.jobs, given.seconds)
        outcomes[kind.name] = tried
        seconds = time.monotonic() - start
        print(f"{kind.name}: {len(tried)} of {len(numbers)}, {seconds:.0f} s so far", flush=True)
    failures = [
        describe_failure(kind, number, outcome, given.seed, work)
        for kind, by_number in outcomes.items()
        for number, outcome in by_number.items()
        if outcome.verdict not in GOOD
    ]
    print("\n".join(["", f"{len(failures)} failed:" if failures else "None failed.", *failures]))
    print("\n" + table(outcomes))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
