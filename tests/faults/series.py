"""Damaged and edited records of series: what somebody gave away names the folders of its runs."""

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tests.faults.commands import forked, judge
from tests.faults.filesystem import FailingCalls
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import REPLACEMENTS, json_text, leaves, mutant, replaced
from tests.faults.run_folders import DAMAGES, prepared
from tests.faults.small_runs import newest_step, training

RECORD = "series.json"
VERBS = ("train", "report", "predict")
BASES = ("runs", "sweep")
NAMES = (
    "{mine}", "../mine", "seed-0/../../mine", "{other}", "../other", "./../other/deep", "linked", "", ".",
    "..", "/", "seed-0", "seed-0/", "SEED-0", "\x00", "x" * 5000,
)  # fmt: skip
"""What the folder of a member may be said to be: a run that has nothing to do with the series, a place where
nothing is, a link to that run, the series itself, the folder of another member, and what is no name."""
VERSIONS = ("0.0.1", "999.0.0", "", None)
Edit = list[tuple[tuple[str | int, ...], Any]]
"""Fields of the record, and what is put there."""
_T = TypeVar("_T")


def edits(record: Mapping[str, Any]) -> list[Edit]:
    """List edits of the members' folders and ends, and of the version."""
    members = [(group, number) for group in ("rates", "members") for number in range(len(record[group]))]
    names: list[Edit] = [
        [((*member, "folder"), name), ((*member, "finished"), finished)]
        for name, finished, member in product(NAMES, (True, False), members)
    ]
    flags: list[Edit] = [
        [((*member, "finished"), flag) for member, flag in zip(members, chosen, strict=True)]
        for chosen in product((True, False), repeat=len(members))
    ]
    ended: list[Edit] = [[((*member, "diverged"), "its loss was nan")] for member in members]
    versions: list[Edit] = [[(("vitkit_version",), version)] for version in VERSIONS]
    return [*names, *flags, *ended, *versions]


class SeriesRecords(Kind):
    """Damage and edits of series.json of a finished series and of one that was killed, under three commands.

    Whatever it says, nothing beside the folder of the series changes, least of all another run's checkpoints.
    """

    name, count, limit = "series", 600, 180.0
    sample = (0, 1, 6, 8)
    forks_commands = True
    per_process = 50

    def prepare(self, folder: Path) -> None:
        mine, runs, sweep = folder / "mine", folder / "runs", folder / "sweep"
        assert forked(_small(mine), folder, first=prepared).code == 0
        ended = forked(_small(runs, "--runs", "2"), folder, first=prepared)
        assert ended.code == 0, ended.err
        rates = ("--sweep-rates", "0.001", "0.01")
        trace = folder / "trace"
        calls = FailingCalls(sweep, None, "kill", trace)
        ended = forked(_small(sweep, *rates), folder, first=partial(_both, calls))
        assert ended.code == 0, ended.err
        made = [json.loads(line)[1] for line in trace.read_text().splitlines()]
        # Killed in the second run of the sweep, when its first checkpoint is committed.
        last = max(
            i for i, name in enumerate(made) if name.startswith("rate-0.01/") and "02/.COMMIT." in name
        )
        shutil.rmtree(sweep)
        killed = FailingCalls(sweep, last + 5, "kill")
        assert forked(_small(sweep, *rates), folder, first=partial(_both, killed)).code == 137
        record = json.loads((sweep / RECORD).read_text())
        assert [rate["finished"] for rate in record["rates"]] == [True, False]
        assert newest_step(sweep / "rate-0.01") == 2 and newest_step(mine) == 4
        Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(folder / "x.png")

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        verb, base = VERBS[number % len(VERBS)], BASES[number // len(VERBS) % len(BASES)]
        series, mine = folder / "series", folder / "mine"
        shutil.copytree(shared / base, series)
        shutil.copytree(shared / "mine", mine)
        (series / "linked").symlink_to(mine)
        done = _damage(series, number // (len(VERBS) * len(BASES)), draw)
        before = _contents(folder)
        ended = forked(_command(verb, series, shared), folder, first=prepared, limit=120)
        outcome = judge(ended)
        after, step = _contents(folder), newest_step(mine)
        if step != newest_step(shared / "mine"):
            outcome = Outcome("lost", f"the newest checkpoint of another run is now {step}")
        elif after != before:
            other = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
            outcome = Outcome("wrong", f"changed beside the series: {', '.join(sorted(other)[:5])}")
        return Outcome(outcome.verdict, f"{verb}, {base}, {done}: {outcome.detail}")


def _small(out: Path, *options: str) -> list[str]:
    return training(out, *options, steps=4, every=2)


def _both(calls: FailingCalls) -> None:
    prepared()
    calls.install()


def _command(verb: str, series: Path, shared: Path) -> list[str]:
    return {
        "train": ["train", "--resume", str(series), "--threads", "1"],
        "report": ["report", str(series)],
        "predict": ["predict", str(series), str(shared / "x.png"), "--json"],
    }[verb]


def _damage(series: Path, turn: int, draw: Random) -> str:
    """Damage the record in one of four ways, by turns; returns what was done in words."""
    path, folder = series / RECORD, series.parent
    text = path.read_text()
    record = json.loads(text)
    number, way = divmod(turn, 4)
    if way in (0, 1):  # the edits are the point, and take every second turn
        chosen = _nth(edits(record), 2 * number + way)
        places = {"{mine}": str(folder / "mine"), "{other}": str(folder / "other")}
        for field, value in chosen:
            record = replaced(record, field, places.get(value, value) if isinstance(value, str) else value)
        path.write_text(json_text(record))
        return ", ".join(f"{'.'.join(map(str, field))} = {value!r:.40}" for field, value in chosen)
    if way == 2:
        field = _nth(list(leaves(record)), number)
        value = draw.choice(REPLACEMENTS)
        path.write_text(json_text(replaced(record, field, value)))
        return f"{'.'.join(map(str, field))} = {value!r:.40}"
    if number % 2:
        path.write_bytes(mutant(text.encode(), draw))
        return "other bytes"
    damage = _nth(list(DAMAGES), number // 2)
    DAMAGES[damage](path)
    return damage


def _nth(items: Sequence[_T], number: int) -> _T:
    """Give an item in an order in which neighbours are not alike; beyond the last they begin anew."""
    order = list(items)
    Random(0).shuffle(order)
    return order[number % len(order)]


def _contents(folder: Path) -> dict[str, str]:
    """Hash every file beside the series; what the command printed is left out."""
    hashes = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if inside.parts[0] not in ("series", "out", "err"):
            is_file = path.is_file() and not path.is_symlink()
            hashes[str(inside)] = hashlib.sha256(path.read_bytes()).hexdigest() if is_file else "no file"
    return hashes
