"""The parts of a run that several processes build alike."""

from dataclasses import replace
from pathlib import Path

import torch

from tests.jobs.hearing import Hearing
from vitkit.data.config import Preprocessing
from vitkit.models.config import PLAIN
from vitkit.runs.build import build_parts, build_validation
from vitkit.runs.config import Run, model_config_of
from vitkit.runs.plan import list_images
from vitkit.world import World

RUN = Run(data="digits", model="ViT-16x1x2/4", preprocessing=Preprocessing((8, 8), resize="crop"))


def test_validation_images_are_divided_for_those_evaluators_alone_that_measure_together(
    tmp_path: Path,
) -> None:
    """Another evaluator measures in the first process, for which it needs all images."""
    data = list_images(RUN)
    config, cpu = model_config_of(RUN, 10), torch.device("cpu")
    parts = build_parts(RUN, data, tmp_path, Hearing(), PLAIN, config, cpu)
    worlds = [World(rank, 3) for rank in range(3)]
    opened = [build_validation(replace(parts, world=world)) for world in worlds]
    every = torch.arange(len(data.splits["val"]))
    for validation in opened:
        assert torch.equal(torch.cat([batch.ids for batch in validation.batches()]), every)
    divided = [torch.cat([batch.ids for batch in v.batches(world=v.world)] or [every[:0]]) for v in opened]
    assert torch.equal(torch.cat(divided).sort().values, every)
    assert max(map(len, divided)) < len(every)
