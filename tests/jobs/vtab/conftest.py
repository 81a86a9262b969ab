"""A checkpoint and two small tasks for VTAB-1k."""

from pathlib import Path

import pytest

import vitkit
from tests.vtab_layout import small_task


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vtab") / "start"
    vitkit.save_model(vitkit.create_model("ViT-16x1x2/4", num_classes=10, image_size=8), folder)
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins of two tasks, one under another of its names, and a folder that is no task."""
    folder = tmp_path_factory.mktemp("vtab") / "vtab-1k"
    small_task(folder / "clevr_count", classes=8)
    small_task(folder / "pets", classes=3, seed=1)
    (folder / "notes").mkdir()
    return folder
