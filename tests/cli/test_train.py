"""The options of `vitkit train`: those of a run, and nothing of the parser in a run."""

from dataclasses import replace

import vitkit
from vitkit.cli.options import parse_given
from vitkit.cli.train import describe_training, options_of_run
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.runs.config import Run, with_options


def test_what_is_given_stays_over_other_defaults() -> None:
    line = (
        "--learning_rate=0.5 --splits.seed 3 --no-flip --fewshot.data digits --fewshot.every 7 "
        "--image-size 32 --max-pixels 99 --warmup-steps 10000"
    )
    given = options_of_run(parse_given(None, describe_training("train", Run()), line.split(), "train"))
    base = vitkit.recipe("imagenet-vit-b16")
    assert base.optimizer.warmup_steps == 10_000  # the same as the base's, and given all the same
    preprocessing = replace(base.preprocessing, image_size=(32, 32))
    expected = replace(
        base,
        optimizer=replace(base.optimizer, learning_rate=0.5),
        splits=replace(base.splits, seed=3),
        augmentation=replace(base.augmentation, flip=False),
        preprocessing=replace(preprocessing, decode=replace(preprocessing.decode, max_pixels=99)),
        fewshot=FewShotTracking(data="digits", every=7),
    )
    assert with_options(base, given) == expected
    longer = replace(base, optimizer=replace(base.optimizer, warmup_steps=5))
    assert with_options(longer, given).optimizer.warmup_steps == 10_000
