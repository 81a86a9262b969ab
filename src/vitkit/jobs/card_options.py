"""The options of a look at a checkpoint. They need no torch."""

from dataclasses import dataclass

from vitkit.jobs.options import CheckpointOptions, StrPath


@dataclass(frozen=True)
class CardOptions(CheckpointOptions):
    """The options of `vitkit card`; the texts below the fields are their help."""

    file: StrPath
    """a run folder, a checkpoint file or folder of any library, or an address (hf:OWNER/NAME,
    https://...)."""
