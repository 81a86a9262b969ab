"""With `quiet`, every study passes on its warnings alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.small_digits import small_run
from tests.helpers.vtab import SMALL
from tests.jobs.hearing import Hearing
from tests.vtab_layout import small_task
from vitkit.data.config import Splits
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

RUN = replace(small_run(4), splits=Splits(val_fraction=0.1, test_fraction=0.2))


def ablate(folder: Path, **options: Any) -> None:
    vitkit.ablate(RUN, ["pool=mean"], seeds=1, fixed_rate=True, out=folder / "out", threads=1, **options)


def reproduce(folder: Path, **options: Any) -> None:
    given: dict[str, Any] = {"steps": 4, "seeds": 1, "only": ["learned", "none"], "threads": 1}
    vitkit.reproduce("table8", out=folder / "out", **given, **options)


def scale(folder: Path, **options: Any) -> None:
    vitkit.scale("digits", recipe=RUN, points=5, out=folder / "out", threads=1, **options)


def vtab(folder: Path, **options: Any) -> None:
    save_model(create_model("ViT-16x1x2/4", num_classes=10, image_size=8), folder / "start")
    small_task(folder / "tasks" / "clevr_count", classes=8)
    vitkit.vtab(folder / "start", folder / "tasks", out=folder / "out", **SMALL, **options)


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize("study", [ablate, reproduce, scale, vtab])
def test_a_quiet_study_passes_on_its_warnings_alone(study: Callable[..., None], tmp_path: Path) -> None:
    hearing = Hearing()
    study(tmp_path, quiet=True, listener=hearing)
    assert not (hearing.notes or hearing.rows or hearing.loops)
