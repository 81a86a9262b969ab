"""Runs that have ended for good give their checkpoints up."""

from pathlib import Path

import pytest

from tests.training.small_run import contents, trained
from vitkit.errors import VitkitError
from vitkit.training.checkpoint import read_ended, remove_checkpoints


def test_checkpoints_behind_a_link_are_not_removed(tmp_path: Path) -> None:
    trained(tmp_path / "mine", 8)
    before = contents(tmp_path / "mine")
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "checkpoints").symlink_to(tmp_path / "mine" / "checkpoints")
    with pytest.raises(VitkitError, match="leads out of its folder"):
        remove_checkpoints(tmp_path / "given")
    assert contents(tmp_path / "mine") == before


def test_a_record_of_an_ended_run_that_was_cut_short_is_swept(tmp_path: Path) -> None:
    trained(tmp_path, 4)
    (tmp_path / ".ended.json.123.tmp").write_text("{")
    remove_checkpoints(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "ended.json", "metrics.jsonl"}
    (tmp_path / "ended.json").write_text('{"step": -1, "environment": {}}')
    with pytest.raises(VitkitError, match=r"ended\.json: step: expected a count"):
        read_ended(tmp_path)
