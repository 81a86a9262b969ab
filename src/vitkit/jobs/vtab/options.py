"""The options of VTAB-1k: 19 tasks of 1,000 training images each."""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from vitkit.data.layouts.vtab_tasks import TaskFolder
from vitkit.errors import VitkitError
from vitkit.jobs.options import SizeOptions, StrPath
from vitkit.jobs.study.options import StudyOptions

RATES: dict[str, Sequence[float]] = {
    "paper": (0.001, 0.003, 0.01, 0.03),  # Table 4 for data sets other than ImageNet
    "finetune": (0.0001, 0.0003, 0.001, 0.003),  # around the rate of AdamW there, 0.0005
}
"""The rates that a sweep tries, by protocol."""


@dataclass(frozen=True)
class VtabOptions(SizeOptions, StudyOptions):
    """The options of VTAB-1k; the texts below the fields are their help."""

    start: StrPath
    """run folder, file or folder of weights, or an address (hf:org/name, https://...)."""
    root: StrPath = ""
    """folder with a folder for each task, such as cifar/ and dtd/, which holds images/, train800.txt,
    val200.txt, train800val200.txt and test.txt, or Parquet files of these names, or of train and test."""
    _: KW_ONLY
    tasks: Sequence[TaskFolder] = ()
    """folders of the tasks, with commas between; left out, all that are there."""
    out: StrPath | None = None
    """folder for the runs and the result; left out, runs/vtab-START. The same command again continues
    there."""
    protocol: Literal["paper", "finetune"] = "paper"
    """paper: SGD for 2,500 steps of 512 images at 384 pixels and a rate of 0.01, with BiT's crops and flips
    where they keep the label: neither in the structured tasks, no flips of SVHN.
    finetune: what vitkit finetune chooses for as many images."""
    steps: int | None = None
    """number of updates of the weights; left out, the protocol's."""
    batch_size: int | None = None
    """images per update of the weights; left out, the protocol's."""
    micro_batch_size: int | None = None
    """images that are computed at a time, which takes less memory; left out, the whole batch."""
    sweep: bool = False
    """choose the learning rate of each task: train on 800 images with each of --rates, take the
    best on the other 200, train on all 1,000 with it, and test that once."""
    rates: Sequence[float] | None = None
    """learning rates that --sweep tries, with commas between; left out, 0.001,0.003,0.01,0.03, or for the
    protocol finetune 0.0001,0.0003,0.001,0.003."""
    seed: int = 0
    """seed of the order of the images and all that is drawn."""
    workers: int | None = None
    """processes that decode the images that do not fit into memory; left out, one for each CPU core."""

    def __post_init__(self) -> None:
        if not self.start:
            raise VitkitError("Which weights to begin from? vitkit vtab START FOLDER")
        if not self.root:
            raise VitkitError(
                "Where are the tasks? Give --root FOLDER, a folder with a folder for each task, such as "
                "cifar/ and dtd/."
            )
        for name in ("steps", "batch_size", "micro_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise VitkitError(f"{name} is at least 1, found {value}.")
        if not all(0 < rate < math.inf for rate in self.tried):
            raise VitkitError(f"rates are numbers above 0, found {', '.join(map(str, self.tried))}.")
        if len({float(rate) for rate in self.tried}) != len(self.tried) or not self.tried:
            raise VitkitError(
                f"rates are different numbers, found {', '.join(map(str, self.tried)) or 'none'}."
            )

    @property
    def tried(self) -> Sequence[float]:
        """The learning rates of a sweep."""
        return RATES[self.protocol] if self.rates is None else self.rates
