"""Few-shot evaluation by several processes against one."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import vitkit
from tests.helpers.fewshot import Seen, class_folders, counted, save_start
from tests.helpers.processes import Processes, ending_of
from vitkit.evaluation.fewshot import methods
from vitkit.world import World


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(3) as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A start, and thirty images that nobody can take for one another, two of which cannot be read."""
    folder = tmp_path_factory.mktemp("fewshot")
    class_folders(folder / "images", {"dark": 10, "grey": 10, "light": 10})
    for name in ("dark/03.png", "light/00.png"):
        (folder / "images" / name).write_bytes(b"no image")
    save_start(folder / "start")
    return folder


def measure(world: World, folder: Path, cache: bool = False) -> tuple[dict[str, Any], Seen]:
    """Measure as `vitkit fewshot` does; returns the numbers and what this process computed."""
    seen, given = Seen(), (str(folder / "start"), str(folder / "images"))
    joined = patch("vitkit.runs.processes.join_processes", lambda say: world)
    environment = patch.dict(os.environ, {"VITKIT_CACHE": str(folder / "cache")})
    small: dict[str, Any] = {"shots": (1, 4), "seeds": 2, "batch_size": 3, "methods": ("ridge", "knn")}
    with joined, environment, counted(seen):
        return vitkit.fewshot(*given, cache=cache, **small).to_json(), seen


def test_the_numbers_are_those_of_one_process(processes: Processes, folder: Path) -> None:
    numbers, alone = measure(World(), folder)
    assert len(set(alone)) == len(alone) > 6
    for size in (2, 3):
        several = processes.run(size, measure, folder)
        assert [measured for measured, _ in several] == [numbers] * size
        assert all(seen for _, seen in several)
        assert sorted(image for _, seen in several for image in seen) == sorted(alone)


def test_features_that_are_kept_are_computed_by_nobody(processes: Processes, folder: Path) -> None:
    first = processes.run(3, measure, folder, True)
    again = processes.run(2, measure, folder, True)
    assert [measured for measured, _ in again] == [first[0][0]] * 2
    assert [seen for _, seen in again] == [[], []]
    assert measure(World(), folder, True) == (first[0][0], [])


def open_others(world: World, folder: Path, other: int) -> str | int | None:
    """Open images, of which one process sees a class less; returns what this one says, or its exit code."""
    seen = folder / ("fewer" if world.rank == other else "images")
    return ending_of(world, lambda: methods.open_fewshot_data(str(seen), world=world))


def test_processes_that_see_other_images_or_none_do_not_go_on(processes: Processes, folder: Path) -> None:
    fewer = Path(shutil.copytree(folder / "images", folder / "fewer", ignore=shutil.ignore_patterns("light")))
    assert processes.run(2, open_others, folder, 2) == [None, None]
    for reason in ("must see the same images", "No data at"):
        sentence, *others = processes.run(3, open_others, folder, 1)
        assert sentence.startswith("Process 1 of 3 on ") and reason in sentence
        assert others == [1, 1]
        shutil.rmtree(fewer, ignore_errors=True)
