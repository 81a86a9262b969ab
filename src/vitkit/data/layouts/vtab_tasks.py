"""The 19 tasks of VTAB-1k (Zhai et al. 2019, arXiv 1910.04867): folders, groups and numbers of classes.

Crops and flips follow BiT (Kolesnikov et al. 2020, arXiv 1912.11370, 3.3), which leaves them out where they
destroy the label's meaning. Neither paper lists these tasks: here the structured tasks, whose
labels are numbers, distances, places and angles, have neither, and house numbers are not mirrored.

The folders have the names under which the tasks are passed around (NOAH `data/vtab-source/get_vtab1k.py`);
their aliases are the names of the copies as Hugging Face data sets. It needs no numpy.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Group = Literal["natural", "specialized", "structured"]
GROUPS: tuple[Group, ...] = get_args(Group)

TaskFolder = Literal[
    "caltech101", "cifar", "dtd", "oxford_flowers102", "oxford_iiit_pet", "sun397", "svhn",
    "patch_camelyon", "eurosat", "resisc45", "diabetic_retinopathy",
    "clevr_count", "clevr_dist", "dmlab", "dsprites_loc", "dsprites_ori", "kitti",
    "smallnorb_azi", "smallnorb_ele",
]  # fmt: skip
"""The folder of a task, in the order of the paper's Table 9."""


PAPER_MODELS = ("ViT-H/14 JFT", "ViT-L/16 JFT", "ViT-L/16 I21k")
"""The ViTs of Table 9, whose means are over the 19 tasks."""
LARGE_CROP, SMALL_CROP = 480 / 512, 128 / 160
"""The part of each side that a random crop takes, of images of 96x96 pixels or more and of smaller ones
(big_transfer `bit_hyperrule.py`, `get_resolution`)."""


@dataclass(frozen=True)
class VtabTask:
    """One of the 19 tasks."""

    folder: TaskFolder
    title: str
    """Its name in the paper's Table 9."""
    group: Group
    classes: int
    """Number of classes. The 1,000 training images need not show all: of SUN397 they show 325."""
    paper: tuple[float, float, float]
    """Its row of Table 9 in per cent, a number for each of `PAPER_MODELS`."""
    aliases: tuple[str, ...] = ()
    """Other names of its folder."""
    small: bool = False
    """Whether its images have fewer than 96x96 pixels."""
    flip: bool = True
    """Whether a mirrored image keeps its label."""

    @property
    def crop(self) -> float | None:
        """The part of each side that a random crop takes; None where a crop changes the label."""
        if self.group == "structured":
            return None
        return SMALL_CROP if self.small else LARGE_CROP

    @property
    def flips(self) -> bool:
        """Whether images are mirrored at random."""
        return self.group != "structured" and self.flip


VTAB_TASKS = (
    VtabTask("caltech101", "Caltech101", "natural", 102, (95.3, 95.4, 90.8)),
    VtabTask("cifar", "CIFAR-100", "natural", 100, (85.5, 81.9, 84.1), ("cifar100",), small=True),
    VtabTask("dtd", "DTD", "natural", 47, (75.2, 74.3, 74.1)),
    VtabTask("oxford_flowers102", "Flowers102", "natural", 102, (99.7, 99.7, 99.3), ("flowers102",)),
    VtabTask("oxford_iiit_pet", "Pets", "natural", 37, (97.2, 96.7, 92.7), ("pets",)),
    VtabTask("sun397", "Sun397", "natural", 397, (65.0, 63.5, 61.0)),
    VtabTask("svhn", "SVHN", "natural", 10, (88.9, 87.4, 80.9), small=True, flip=False),
    VtabTask("patch_camelyon", "Camelyon", "specialized", 2, (83.3, 83.6, 82.5)),
    VtabTask("eurosat", "EuroSAT", "specialized", 10, (96.7, 96.5, 95.6), small=True),
    VtabTask("resisc45", "Resisc45", "specialized", 45, (91.4, 89.7, 85.2)),
    VtabTask("diabetic_retinopathy", "Retinopathy", "specialized", 5, (76.6, 77.1, 75.3), ("retinopathy",)),
    VtabTask("clevr_count", "Clevr-Count", "structured", 8, (91.7, 86.4, 70.3)),
    VtabTask("clevr_dist", "Clevr-Dist", "structured", 6, (63.8, 63.1, 56.1), ("clevr_distance",)),
    VtabTask("dmlab", "DMLab", "structured", 6, (53.1, 49.7, 41.9)),
    VtabTask("dsprites_loc", "dSpr-Loc", "structured", 16, (79.4, 74.5, 74.7), ("dsprites_location",)),
    VtabTask("dsprites_ori", "dSpr-Ori", "structured", 16, (63.3, 60.5, 64.9), ("dsprites_orientation",)),
    VtabTask("kitti", "KITTI-Dist", "structured", 4, (84.5, 82.2, 79.9), ("kitti_distance", "kitti_dist")),
    VtabTask("smallnorb_azi", "sNORB-Azim", "structured", 18, (33.2, 36.2, 30.5), ("smallnorb_azimuth",)),
    VtabTask("smallnorb_ele", "sNORB-Elev", "structured", 9, (51.2, 51.1, 41.7), ("smallnorb_elevation",)),
)


def task_of_folder(name: str) -> VtabTask | None:
    """Return the task that a folder of this name holds; None where it is none of the 19.

    A prefix `vtab-1k_` is passed over: copies on the Hugging Face Hub have it.
    """
    plain = name.removeprefix("vtab-1k_")
    return next((task for task in VTAB_TASKS if plain in (task.folder, *task.aliases)), None)
