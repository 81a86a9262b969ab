"""Processes follow the one that plans a run: they take its options from the invitation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitkit
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.jobs import train_run as following
from vitkit.jobs.train_run import Invitation
from vitkit.models.build import build_model
from vitkit.models.config import PLAIN
from vitkit.models.zoo import model_config
from vitkit.runs.build import Parts
from vitkit.runs.config import Run
from vitkit.runs.trained_model import DataRecord, RejectedFiles, read_record
from vitkit.training.config import TrainingConfig
from vitkit.world import World

RUN = Run(
    data="digits",
    model="ViT-16x1x2/4",
    preprocessing=Preprocessing(image_size=(8, 8)),
    training=TrainingConfig(steps=1, batch_size=8, evaluate_test=False),
)


class BeganError(Exception):
    """The steps began: nothing after that is tested."""


def test_the_options_of_process_0_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those for memory may be others than the ones that the folder was begun with."""
    folder = vitkit.train(RUN, tmp_path / "run")
    record, began = read_record(folder), dict[str, Any]()
    assert record is not None
    changed = replace(RUN, training=replace(RUN.training, micro_batch_size=3, recompute=True))
    threads = torch.get_num_threads()
    model = vitkit.load_model(folder)
    facts = record.fingerprint, model.config, model.card, RejectedFiles(folder, record), PLAIN
    invitation = Invitation(folder, changed, *facts, "hsdp", None, "cpu", threads)
    monkeypatch.setattr("vitkit.runs.processes.await_message", lambda world: invitation)

    def begin(parts: Parts, *rest: object, **options: object) -> None:
        began.update(options, run=parts.run)
        raise BeganError

    monkeypatch.setattr("vitkit.runs.build.begin_steps", begin)
    with pytest.raises(BeganError):
        following.follow(World(1, 2, 1, 2))
    assert began == {"run": changed, "sharding": "hsdp"}


def test_a_folder_that_is_not_seen_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(model_config("ViT-16x1x2/4", 10, (8, 8)))
    nothing = RejectedFiles(tmp_path, DataRecord("", "", "", (), {}, (), {}, "", {}))
    facts = "", model.config, model.card, nothing, PLAIN
    invitation = Invitation(tmp_path / "elsewhere", RUN, *facts, "replicas", None, "cpu", 1)
    monkeypatch.setattr("vitkit.runs.processes.await_message", lambda world: invitation)
    threads = torch.get_num_threads()
    try:
        with pytest.raises(VitkitError, match="cannot be seen by process 1"):
            following.follow(World(1, 2, 1, 2))
    finally:
        torch.set_num_threads(threads)
