"""Images, a checkpoint, and a cache of features for each test of few-shot evaluation."""

from pathlib import Path

import pytest

from tests.helpers.fewshot import class_folders, save_start


@pytest.fixture(autouse=True)
def own_cache(in_an_empty_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITKIT_CACHE", str(Path.cwd() / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(class_folders(tmp_path / "images", {"dark": 12, "grey": 12, "light": 12}))


@pytest.fixture
def start(tmp_path: Path) -> str:
    return save_start(tmp_path / "start")
