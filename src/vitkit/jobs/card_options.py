"""The options of a look at a checkpoint. They need no torch."""

from dataclasses import dataclass

from vitkit.jobs.options import CheckpointOptions, SourceOptions


@dataclass(frozen=True)
class CardOptions(CheckpointOptions, SourceOptions):
    """The options of `vitkit card`."""
