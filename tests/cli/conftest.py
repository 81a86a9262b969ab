"""A working folder with a model and images, for several files of tests."""

from pathlib import Path

import pytest

from tests.helpers.hostile import write_folder


@pytest.fixture(scope="session")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    write_folder(root)
    return root


@pytest.fixture
def inside(hostile_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of its own that has the model, the images and the odd paths."""
    for path in hostile_folder.iterdir():
        (tmp_path / path.name).symlink_to(path if path.name != "loop" else "loop")
    monkeypatch.chdir(tmp_path)
