"""What `scripts/same-as` notices."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.same.compare import Difference, compare, compare_runs, describe, read_values


@pytest.mark.parametrize(
    ("old", "new", "deleted", "changed"),
    [
        ({"a": 1, "b": [1, {"c": None}]}, {"b": [1, {"c": None}], "a": 1}, set(), []),
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 2}}, {"a.b"}, []),
        ([{"a": 1, "b": 2}, {"a": 1, "b": 2}], [{"a": 1}, {"a": 1}], {"[].b"}, []),
        ({"a": 1}, {"a": 2}, set(), ["a: 1 -> 2"]),
        ({"a": 1}, {"a": 1.0}, set(), ["a: 1 -> 1.0"]),
        ({"a": 1}, {"a": 1, "b": 1}, set(), ["b: is new, 1"]),
        ({"a": [1, 2]}, {"a": [1]}, {"a[]"}, ["a[]: 2 -> 1"]),
        (float("nan"), float("nan"), set(), []),
        ({"seconds": 1.5, "a": 1}, {"seconds": 1.25, "a": 1}, set(), []),
        ({"seconds": 1.5}, {}, {"seconds"}, []),
        ({"seconds": [1, {"a": 1, "b": 2}]}, {"seconds": [2, {"b": 2}]}, {"seconds[].a"}, []),
        ("about 3 min, 4 steps", "about 20 s, 4 steps", set(), []),
        (
            "about 3 min, 4 steps",
            "about 3 min, 5 steps",
            set(),
            ['the whole: "about 3 min, 4 steps" -> "about 3 min, 5 steps"'],
        ),
    ],
)
def test_a_key_that_has_gone_is_named_and_all_else_is_a_change(
    old: Any, new: Any, deleted: set[str], changed: list[str]
) -> None:
    assert compare(old, new) == Difference(deleted, changed)


def write_run(folder: Path, weights: bytes = b"w", loss: float = 1.0, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights)
    lines = [{"kind": "train", "step": step, "loss": loss, "seconds": len(str(folder))} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps({"data": str(folder.parent / "photos"), **config}))
    return folder


def test_runs_in_other_folders_differ_in_a_key_a_bit_of_the_weights_and_a_loss(tmp_path: Path) -> None:
    old = write_run(tmp_path / "old" / "run", task={"a": 1, "b": 2})
    new = write_run(tmp_path / "another" / "run", task={"a": 1})
    assert compare_runs(old, new) == Difference({"config.json: task.b"}, [])
    new = write_run(tmp_path / "new" / "run", b"v", 1.5, task={"a": 1, "b": 2})
    assert compare_runs(old, new).changed == [
        "model.safetensors: other bytes",
        "metrics.jsonl: [0].loss: 1.0 -> 1.5",
        "metrics.jsonl: [1].loss: 1.0 -> 1.5",
    ]
    (new / "config.json").unlink()
    assert compare_runs(old, new).changed[-1] == f"config.json: absent in {new}"


def test_the_table_names_what_differs_and_tells_whether_it_matters() -> None:
    gone = Difference({"b", "a"})
    assert describe([("card", Difference()), ("cost", gone)]) == (
        "| what | difference |\n| --- | --- |\n| card | none |\n| cost | deleted keys: a, b |",
        True,
    )
    table, same = describe([("cost", Difference({"a"}, [str(number) for number in range(7)]))])
    assert not same and table.endswith("| cost | DIFFERS: 4 |\n| cost | DIFFERS: 2 more |")


def test_lines_of_json_are_a_list_and_text_is_refused(tmp_path: Path) -> None:
    assert read_values(f'{{"a": "{tmp_path}/x"}}\n{{"a": "{tmp_path}"}}\n', tmp_path) == [
        {"a": "x"},
        {"a": "."},
    ]
    assert read_values('points  3\n{\n "a": 1\n}\n', tmp_path) == {"a": 1}
    with pytest.raises(ValueError):
        read_values("no such verb", tmp_path)
