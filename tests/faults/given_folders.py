"""Damaged results that a command finds in a folder: parts of a table, a benchmark, the result of VTAB-1k."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.faults.commands import forked, judge
from tests.faults.entry import listed_runs, sealed_part, small_parts
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import REPLACEMENTS, json_text, leaves, mutant, replaced
from tests.faults.run_folders import DAMAGES, prepared
from tests.faults.small_runs import image_folder, training

IMAGES = 40
"""In three parts, of 16, 16 and 8 rows."""
NUMBERS = (0, -1, 1, 15, 20, 39, 41, 500, 10**15, 10**30)
Fields = dict[str, Any]


class Parts(Kind):
    """Damaged and edited records and parts of `predict --out` and `embed --out`.

    The same command again ends in words, or with the rows of all images as they were. Whoever writes a part
    and its checksum anew can give other answers, but never for fewer or more images.
    """

    name, count, limit = "parts", 600, 120.0
    sample = tuple(range(6))
    forks_commands = True
    per_process = 50

    def prepare(self, folder: Path) -> None:
        image_folder(folder / "images", IMAGES)
        options = training(folder / "run", data=str(folder / "images"), steps=2)
        ended = forked(options, folder, first=prepared)
        assert ended.code == 0, ended.err
        for verb in VERBS:
            ended = forked(_command(verb, folder, folder / verb), folder, first=_small)
            assert ended.code == 0, ended.err
            assert len(_rows(folder / verb)) == IMAGES and (folder / verb / "part-00002.parquet").exists()

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        verb = VERBS[number % 2]
        out = folder / "results"
        shutil.copytree(shared / verb, out)
        done, checked = _damage(out, number // 2, draw)
        ended = forked(_command(verb, shared, out), folder, first=_small, limit=60)
        outcome = judge(ended)
        if outcome.verdict == "right":
            rows, expected = _rows(out), _rows(shared / verb)
            if len(rows) != IMAGES or f"{IMAGES} images" not in ended.out:
                outcome = Outcome("wrong", f"exit code 0 with {len(rows)} of {IMAGES} rows")
            elif checked and rows != expected:
                outcome = Outcome("wrong", "exit code 0, but other rows")
        return Outcome(outcome.verdict, f"{verb}, {done}: {outcome.detail}")


VERBS = ("predict", "embed")


def _small() -> None:
    prepared()
    small_parts(16)


def _command(verb: str, shared: Path, out: Path) -> list[str]:
    return [verb, str(shared / "run"), str(shared / "images"), "--out", str(out), "--batch-size", "8"]


def _rows(folder: Path) -> list[Fields]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))]
    rows: list[Fields] = pa.concat_tables(tables).to_pylist()
    return rows


def _damage(out: Path, turn: int, draw: Random) -> tuple[str, bool]:
    """Damage the record or a part, by turns; returns what was done, and whether a checksum can notice it."""
    record, part = out / "_parts.json", out / f"part-{draw.randrange(3):05d}.parquet"
    fields = json.loads(record.read_text())
    match turn % 6:
        case 0:
            edit = {"rows": draw.choice(NUMBERS), "part_rows": draw.choice((*NUMBERS, 16))}
            edit = dict(draw.sample(list(edit.items()), draw.choice((1, 2))))
            record.write_text(json_text({**fields, **edit}))
            return f"{edit}", True
        case 1:
            return _edit(record, draw), True
        case 2:
            record.write_bytes(mutant(record.read_bytes(), draw))
            return "other bytes of _parts.json", True
        case 3:
            path, damage = draw.choice((record, part)), draw.choice([*DAMAGES, "6 GiB"])
            os.truncate(path, 6 << 30) if damage == "6 GiB" else DAMAGES[damage](path)
            return f"{path.name} {damage}", True
        case 4:
            part.write_bytes(mutant(part.read_bytes(), draw))
            return f"other bytes of {part.name}", True
    table = pq.read_table(part)
    tables = {
        "fewer rows": table.slice(1),
        "more rows": pa.concat_tables([table, table]),
        "other names": table.rename_columns([f"x{name}" for name in table.column_names]),
        "a column less": table.drop_columns([draw.choice(table.column_names)]),
        "text in all columns": pa.table({name: ["x"] * len(table) for name in table.column_names}),
        "no columns": pa.table({}),
        "the rows of one image": table.take([0] * len(table)),
        "damaged bytes": None,
    }
    way = draw.choice(list(tables))
    if tables[way] is None:
        part.write_bytes(mutant(part.read_bytes(), draw))
    else:
        pq.write_table(tables[way], part)
    fields["finished"][part.name] = sealed_part(part)
    record.write_text(json_text(fields))
    return f"{way}, with its checksum, in {part.name}", False


def _edit(path: Path, draw: Random) -> str:
    """Replace one value of a JSON file; returns what was done."""
    data = json.loads(path.read_text())
    field, value = draw.choice(list(leaves(data))), draw.choice(REPLACEMENTS)
    path.write_text(json_text(replaced(data, field, value)))
    return f"{path.name}, {'.'.join(map(str, field))} = {value!r:.40}"


class Benchmarks(Kind):
    """Damage to bench.json in the folder of `reproduce fig12`, which reads it again."""

    name, count, limit = "benchmarks", 400, 120.0
    sample = tuple(range(4))
    forks_commands = True
    per_process = 50

    def prepare(self, folder: Path) -> None:
        ended = forked(_fig12(folder / "results"), folder, first=prepared, limit=300)
        assert ended.code == 0, ended.err
        assert (folder / "results/bench.json").exists()

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        out = folder / "results"
        shutil.copytree(shared / "results", out)
        path = out / "bench.json"
        if draw.random() < 0.7:
            done = _edit(path, draw)
        elif draw.random() < 0.4:
            path.write_bytes(mutant(path.read_bytes(), draw))
            done = f"other bytes of {path.name}"
        else:
            # Without its times the command would measure again, which takes a quarter of a minute.
            damage = draw.choice([*set(DAMAGES) - {"removed"}, "6 GiB"])
            os.truncate(path, 6 << 30) if damage == "6 GiB" else DAMAGES[damage](path)
            done = f"{path.name} {damage}"
        outcome = judge(forked(_fig12(out), folder, first=prepared, limit=60))
        return Outcome(outcome.verdict, f"{done}: {outcome.detail}")


def _fig12(out: Path) -> list[str]:
    small = ("--start", "ViT-16x1x2/64", "--minutes", "0.05", "--threads", "1")
    return ["reproduce", "fig12", *small, "--out", str(out)]


class RunLists(Kind):
    """A damaged study.json beside a whole one: the list of runs has the whole one, and tells of the other."""

    name, count, limit = "run_lists", 2_000, 20.0
    sample = tuple(range(60))
    most_memory = 256 << 20

    def prepare(self, folder: Path) -> None:
        """Nothing is shared: the records are small."""

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        study = {"vitkit_version": "0.1", "kind": "scale", "command": "vitkit scale", "arms": []}
        whole = json.dumps({**study, "options": {"seconds": 0.25}})
        for name in ("broken", "whole"):
            (folder / name).mkdir()
            (folder / name / "study.json").write_text(whole)
            (folder / name / "report.html").touch()  # a study that trains no arm has ended with its page
        path = folder / "broken/study.json"
        match number % 3:
            case 0:
                done = _edit(path, draw)
            case 1:
                path.write_bytes(mutant(path.read_bytes(), draw))
                done = "other bytes"
            case _:
                digits = draw.choice(("1" + "0" * 400, "9" * 5000, "1e400", "-1e-400", "NaN", "1.0000001"))
                damages: Iterable[str] = (*DAMAGES, digits, "6 GiB")
                done = draw.choice(list(damages))
                if done == "6 GiB":
                    os.truncate(path, 6 << 30)
                elif done == digits:
                    path.write_text(whole.replace("0.25", digits))
                else:
                    DAMAGES[done](path)
        rows = {Path(row.folder).name: row for row in listed_runs(folder)}
        if "whole" not in rows or rows["whole"].state != "ended":
            return Outcome("wrong", f"{done:.60}: the whole one is listed as {rows.get('whole')}")
        row = rows.get("broken")
        if row is None or row.state == "damaged":  # nothing that is no file is taken for a record
            return Outcome("words", f"{done:.60}: {'not listed' if row is None else row.progress}")
        return Outcome("right", f"{done:.60}")
