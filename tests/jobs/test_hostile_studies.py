"""The folder of a study that somebody edited, damaged, moved or made: the call that goes on there is refused
with an error, or goes on within the folder. Nothing is written outside of it."""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import vitkit
from tests.faults.mutate import REMOVED, leaves, replaced
from tests.faults.studies import STUDIES, complete_study, make_shared, measure_paces
from tests.helpers.damage import damage
from vitkit.jobs import train as series
from vitkit.jobs.study import study

pytestmark = pytest.mark.usefixtures("without_report")


class ReachedError(Exception):
    """A call has understood the folder and trains in it."""


@dataclass(frozen=True)
class Kind:
    """A kind of study that has begun."""

    call: Callable[[Path], Any]
    """Begins the study in a folder, or goes on there."""
    template: Path
    """A folder in which it has begun."""
    result: Any = field(repr=False)
    """The result of the call; None where it trains."""


def train(_run: vitkit.Run, folder: Path, **_options: Any) -> Path:
    """Stand for training, whose first run is as far as a call has to come."""
    raise ReachedError(folder)


@pytest.fixture(scope="module")
def kinds(without_report: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    shared = make_shared(tmp_path_factory.mktemp("shared"))
    made = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(series, "train_run", train)
        patched.setattr(study, "measure_paces", measure_paces)
        for name in STUDIES:
            call, template, result = partial(complete_study, name, shared), shared / "studies" / name, None
            with contextlib.suppress(ReachedError):
                result = call(template)
            made[name] = Kind(call, template, result)
        yield made


def record_of(folder: Path) -> Path:
    names = ("study.json", "series.json")
    return next(folder / name for name in names if (folder / name).exists())


def listing(folder: Path) -> dict[str, int]:
    """Give all that is below a folder, and when it was changed; links are not followed."""
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def refused_or_right(kind: Kind, folder: Path, harm: Callable[[Path], None]) -> str:
    """Harm a copy of the study and go on with it; return the error, "" where it goes on."""
    shutil.rmtree(folder, ignore_errors=True)
    own, outside = folder / "study", folder / "outside"
    shutil.copytree(kind.template, own)
    outside.mkdir()
    (outside / "letter.txt").write_text("{}")
    harm(own)
    before = listing(outside)
    try:
        result = kind.call(own)
    except vitkit.VitkitError as error:
        assert len(str(error)) < 5000
        return str(error)
    except ReachedError as reached:
        assert Path(str(reached)).resolve().is_relative_to(own.resolve())
        result = None
    finally:
        assert {path.name for path in folder.iterdir()} == {"study", "outside"}
        assert listing(outside) == before
    if kind.result is not None:
        assert json.dumps(result.to_json()) == json.dumps(kind.result.to_json()).replace(
            str(kind.template), str(own)
        )
    return ""


@pytest.mark.parametrize("name", STUDIES)
@given(harm=damage())
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_record_is_refused_or_changes_nothing(
    name: str, kinds: dict[str, Kind], tmp_path: Path, harm: Callable[[bytes], bytes]
) -> None:
    def damaged(folder: Path) -> None:
        record = record_of(folder)
        record.write_bytes(harm(record.read_bytes()))

    refused_or_right(kinds[name], tmp_path / "case", damaged)


@pytest.mark.parametrize("name", STUDIES)
def test_a_hostile_folder_changes_nothing(name: str, kinds: dict[str, Kind], tmp_path: Path) -> None:
    kind = kinds[name]

    def with_value(place: Any, value: Any) -> Callable[[Path], None]:
        def harm(folder: Path) -> None:
            record = record_of(folder)
            record.write_text(json.dumps(replaced(json.loads(record.read_text()), place, value)))

        return harm

    def replaced_by(put: Callable[[Path], object]) -> Callable[[Path], None]:
        def harm(folder: Path) -> None:
            record = record_of(folder)
            record.unlink()
            put(record)

        return harm

    def with_links_out(folder: Path) -> None:
        for path in [path for path in folder.iterdir() if path.is_dir()]:
            shutil.rmtree(path)
            path.symlink_to(folder.parent / "outside")
        for own in ("base", "seed-0", "first"):
            if not (folder / own).is_symlink():
                (folder / own).symlink_to(folder.parent / "outside")

    other = kinds["series" if name == "scale" else "scale"]
    replacements: tuple[Callable[[Path], object], ...] = (
        lambda record: record.symlink_to(record.parents[1] / "outside/letter.txt"),
        os.mkfifo,
        lambda record: shutil.copy(record_of(other.template), record.parent),
    )
    assert refused_or_right(kind, tmp_path / "case", lambda folder: None) == ""  # moved, and whole
    for put in replacements:
        assert refused_or_right(kind, tmp_path / "case", replaced_by(put))
    refused_or_right(kind, tmp_path / "case", with_links_out)
    record = json.loads(record_of(kind.template).read_text())
    named = [place for place in leaves(record) if place[-1] == "folder"]
    for place in named[-1:]:
        for hostile in ("../outside", "", "x" * 300, "\0"):
            assert refused_or_right(kind, tmp_path / "case", with_value(place, hostile))
    places = (*named[:1], *list(leaves(record))[-3:])
    for place, value in zip(places, itertools.cycle((10**400, float("nan"), REMOVED)), strict=False):
        refused_or_right(kind, tmp_path / "case", with_value(place, value))
