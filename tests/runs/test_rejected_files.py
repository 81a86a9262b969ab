"""The list of files that could not be read: on disk as soon as asked, and taken up again."""

from pathlib import Path

import pytest

from tests.jobs.hearing import Hearing
from vitkit.runs.trained_model import RECORD, DataRecord, RejectedFiles, read_record

RECORDED = DataRecord(
    "digits", "digits", "built-in", ("a", "b"), {}, (), {"train": {"1.png": "cut short"}}, "0", {}
)


def test_what_is_found_is_written_and_taken_up_again(tmp_path: Path) -> None:
    rejects = RejectedFiles(tmp_path, RECORDED)
    rejects.write()
    assert not (tmp_path / RECORD).exists()  # nothing new
    rejects.of_split["test"]["2.png"] = "empty"
    assert rejects.of_split["val"] == {}
    rejects.write()
    reasons = {"train": {"1.png": "cut short"}, "test": {"2.png": "empty"}}
    record = read_record(tmp_path)
    assert record is not None and record.rejects == reasons
    assert RejectedFiles(tmp_path, record).of_split["test"] == {"2.png": "empty"}


def test_the_listener_hears_how_many_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rejects, heard = RejectedFiles(tmp_path, RECORDED), Hearing()
    assert rejects.of_split["val"] == {}
    rejects.of_split["test"].update({"2.png": "empty", "3.png": "empty"})
    rejects.tell(heard)
    assert heard.warnings == [
        "1 image of train could not be read: see the report.",
        "2 images of test could not be read: see the report.",
    ]
    assert capsys.readouterr() == ("", "")
