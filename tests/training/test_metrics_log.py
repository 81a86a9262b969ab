"""The log of a run holds what its checkpoint says it held, or the user hears of it."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.training.small_run import TRAINING, fingerprint, fit, log_of, resumed, small_trainer, trained
from vitkit.errors import VitkitError
from vitkit.training.config import TrainingConfig
from vitkit.training.trainer import MetricsLog


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, and one that was left after step 8."""
    root = tmp_path_factory.mktemp("logs")
    trained(root / "whole", 0)
    trained(root / "run", 8)
    return root


@pytest.mark.parametrize("damage", ["flipped", "halved", "emptied", "not UTF-8", "deleted"])
def test_a_damaged_log_is_noticed_kept_and_begun_again(folders: Path, tmp_path: Path, damage: str) -> None:
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    log = tmp_path / "run" / "metrics.jsonl"
    content = log.read_bytes()
    broken = {
        "flipped": content[:9] + bytes([content[9] ^ 1]) + content[10:],
        "halved": content[: len(content) // 2],
        "emptied": b"",
        "not UTF-8": b"\xff" * 5000,
    }.get(damage)
    log.unlink() if broken is None else log.write_bytes(broken)
    trainer, sentences = resumed(tmp_path / "run")
    assert len(sentences) == 1 and "A new one begins after step 8" in sentences[0]
    aside = tmp_path / "run" / "damaged-metrics.jsonl"
    if broken is None:
        assert not aside.exists() and "is gone" in sentences[0]
    else:
        assert aside.read_bytes() == broken and str(aside) in sentences[0]
    # A kill before the next checkpoint, with lines written already: no second copy is set aside.
    fit(trainer, 9)
    trainer, sentences = resumed(tmp_path / "run")
    assert sentences == [] and not (tmp_path / "run" / "damaged-metrics.jsonl-2").exists()
    list(trainer.fit())
    for name in ("model", "average", "optimizer"):
        last = f"checkpoints/step-00000012/{name}.safetensors"
        assert (tmp_path / "run" / last).read_bytes() == (tmp_path / "whole" / last).read_bytes()
    lines = log_of(tmp_path / "run")
    assert lines[0] == {"kind": "restart", "step": 8}
    assert lines[1:] == [line for line in log_of(tmp_path / "whole") if line["step"] > 8]
    assert resumed(tmp_path / "run")[1] == []  # the last checkpoint knows the new log


def test_lines_beyond_the_checkpoint_are_no_damage(folders: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(folders / "run", tmp_path / "run"))
    log = run / "metrics.jsonl"
    before = log.read_bytes()
    log.write_bytes(before + b'{"kind": "train", "st')
    trainer, sentences = resumed(run)
    assert sentences == []
    next(iter(trainer.fit()))
    assert log.read_bytes().startswith(before)
    assert [line["step"] for line in log_of(run)] == [3, 4, 6, 8, 9]


def test_length_and_hash_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = MetricsLog(path, 0)
    log.write({"a": 1})
    first = log.sync()
    log.write({"b": 2})
    log.close()
    again = MetricsLog(path, first[0])
    assert again.sync() == first and path.read_text() == '{"a": 1}\n'
    again.close()


def test_a_pipe_is_no_log(folders: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(VitkitError, match="expected a regular file"):
        list(small_trainer(tmp_path).fit())
    shutil.copytree(folders / "run", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "run" / "metrics.jsonl")
    with pytest.raises(VitkitError, match="expected a regular file"):
        resumed(tmp_path / "run")


OFTEN = replace(TRAINING, log_every=100, evaluate_every=100, checkpoint_every=2)


@pytest.mark.parametrize(
    ("training", "step", "last", "committed", "replaced"),
    [
        (TRAINING, 1, 2, 0, True),
        (TRAINING, 6, 7, 4, False),
        (OFTEN, 2, 3, 2, True),
        (OFTEN, 1, 1, 0, False),
    ],
    ids=["no checkpoint yet", "before a line", "between checkpoints", "before the first checkpoint"],
)
def test_a_folder_that_is_moved_gets_no_second_half(
    tmp_path: Path, training: TrainingConfig, step: int, last: int, committed: int, replaced: bool
) -> None:
    whole = trained(tmp_path / "whole", 0, training=training)
    run, moved, steps = tmp_path / "run", tmp_path / "moved", list[int]()
    with pytest.raises(VitkitError, match=f"{run} was moved, renamed or removed .* --resume"):
        for report in small_trainer(run, training).fit():
            steps.append(report.step)
            if report.step == step:
                run.rename(moved)
                if replaced:
                    run.mkdir()
    assert steps[-1] == last and not list(run.glob("*")) and run.exists() == replaced
    trainer, _ = resumed(moved, training=training)
    assert trainer.state.progress.step == committed
    list(trainer.fit())
    assert fingerprint(trainer) == fingerprint(whole)
