"""The paper's Table 9 as plain data."""

from vitkit.data.layouts.vtab_tasks import VTAB_TASKS, Group, TaskFolder, VtabTask

PAPER_MODELS = ("ViT-H/14 JFT", "ViT-L/16 JFT", "ViT-L/16 I21k")
PAPER: dict[TaskFolder, tuple[float, float, float]] = {
    "caltech101": (95.3, 95.4, 90.8),
    "cifar": (85.5, 81.9, 84.1),
    "dtd": (75.2, 74.3, 74.1),
    "oxford_flowers102": (99.7, 99.7, 99.3),
    "oxford_iiit_pet": (97.2, 96.7, 92.7),
    "sun397": (65.0, 63.5, 61.0),
    "svhn": (88.9, 87.4, 80.9),
    "patch_camelyon": (83.3, 83.6, 82.5),
    "eurosat": (96.7, 96.5, 95.6),
    "resisc45": (91.4, 89.7, 85.2),
    "diabetic_retinopathy": (76.6, 77.1, 75.3),
    "clevr_count": (91.7, 86.4, 70.3),
    "clevr_dist": (63.8, 63.1, 56.1),
    "dmlab": (53.1, 49.7, 41.9),
    "dsprites_loc": (79.4, 74.5, 74.7),
    "dsprites_ori": (63.3, 60.5, 64.9),
    "kitti": (84.5, 82.2, 79.9),
    "smallnorb_azi": (33.2, 36.2, 30.5),
    "smallnorb_ele": (51.2, 51.1, 41.7),
}
"""Table 9 of the paper in per cent, a column for each of its models. Its means are over the 19 tasks."""


def tasks_of(group: Group | None) -> list[VtabTask]:
    """Return the tasks of a group, or all 19."""
    return [task for task in VTAB_TASKS if group in (None, task.group)]
