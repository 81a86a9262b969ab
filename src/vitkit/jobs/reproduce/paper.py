"""The paper's numbers as plain data: arXiv 2010.11929v2, tables as numbered there.

Table 6 stands in `jobs/cost.py`, and Table 9 in `data/layouts/vtab_tasks.py`, where they are compared with
our numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vitkit.jobs.cost import TABLE_6
from vitkit.result import Cell, Number, Table


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    source: str
    """The table, and the quantity and unit of its numbers."""
    headings: tuple[str, ...]
    rows: Mapping[str, tuple[float | None, ...]]
    """The numbers of each row by its label; None where the paper has none."""
    digits: int = 2
    """Digits after the point that the paper prints."""

    def table(self) -> Table:
        """Lay the numbers out for a page."""

        def cell(value: float | None) -> Cell:
            return "" if value is None else Number(f"{value:,.{self.digits}f}", value)

        return Table(self.headings, tuple((name, *map(cell, values)) for name, values in self.rows.items()))


TABLE_2 = PaperTable(
    "Table 2: top-1 accuracy in per cent, mean of three fine-tuning runs; the last row TPUv3-core-days",
    ("task", "ViT-H/14 JFT", "ViT-L/16 JFT", "ViT-L/16 I21k", "BiT-L R152x4", "Noisy Student L2"),
    {
        "ImageNet": (88.55, 87.76, 85.30, 87.54, 88.4),
        "ImageNet ReaL": (90.72, 90.54, 88.62, 90.54, 90.55),
        "CIFAR-10": (99.50, 99.42, 99.15, 99.37, None),
        "CIFAR-100": (94.55, 93.90, 93.25, 93.51, None),
        "Oxford-IIIT Pets": (97.56, 97.32, 94.67, 96.62, None),
        "Oxford Flowers-102": (99.68, 99.74, 99.61, 99.63, None),
        "VTAB (19 tasks)": (77.63, 76.28, 72.72, 76.29, None),
        "TPUv3-core-days": (2_500, 680, 230, 9_900, 12_300),
    },
)

MODELS_5 = ("ViT-B/16", "ViT-B/32", "ViT-L/16", "ViT-L/32", "ViT-H/14")
TABLE_5 = PaperTable(
    "Table 5: top-1 accuracy in per cent after fine-tuning at 384 pixels",
    ("pre-trained on, task", *MODELS_5),
    {
        "ImageNet, CIFAR-10": (98.13, 97.77, 97.86, 97.94, None),
        "ImageNet, CIFAR-100": (87.13, 86.31, 86.35, 87.07, None),
        "ImageNet, ImageNet": (77.91, 73.38, 76.53, 71.16, None),
        "ImageNet, ImageNet ReaL": (83.57, 79.56, 82.19, 77.83, None),
        "ImageNet, Flowers-102": (89.49, 85.43, 89.66, 86.36, None),
        "ImageNet, Pets": (93.81, 92.04, 93.64, 91.35, None),
        "ImageNet-21k, CIFAR-10": (98.95, 98.79, 99.16, 99.13, 99.27),
        "ImageNet-21k, CIFAR-100": (91.67, 91.97, 93.44, 93.04, 93.82),
        "ImageNet-21k, ImageNet": (83.97, 81.28, 85.15, 80.99, 85.13),
        "ImageNet-21k, ImageNet ReaL": (88.35, 86.63, 88.40, 85.65, 88.70),
        "ImageNet-21k, Flowers-102": (99.38, 99.11, 99.61, 99.19, 99.51),
        "ImageNet-21k, Pets": (94.43, 93.02, 94.73, 93.09, 94.82),
        "JFT-300M, CIFAR-10": (99.00, 98.61, 99.38, 99.19, 99.50),
        "JFT-300M, CIFAR-100": (91.87, 90.49, 94.04, 92.52, 94.55),
        "JFT-300M, ImageNet": (84.15, 80.73, 87.12, 84.37, 88.04),
        "JFT-300M, ImageNet ReaL": (88.85, 86.27, 89.99, 88.28, 90.33),
        "JFT-300M, Flowers-102": (99.56, 99.27, 99.56, 99.45, 99.68),
        "JFT-300M, Pets": (95.80, 93.40, 97.11, 95.83, 97.56),
    },
)

DATA_SIZES = PaperTable(
    "Table 5, its rows of ImageNet: top-1 accuracy in per cent by the data set of the pre-training, of 1.3, "
    "14 and 303 million images; it has the ViTs alone",
    ("pre-trained on", *MODELS_5),
    {name: TABLE_5.rows[f"{name}, ImageNet"] for name in ("ImageNet", "ImageNet-21k", "JFT-300M")},
)

TABLE_6_WHOLE = PaperTable(
    "Table 6: pre-training on JFT-300M, top-1 accuracy in per cent after fine-tuning, and exaFLOPs",
    ("model, epochs", "ImageNet", "ReaL", "CIFAR-10", "CIFAR-100", "Pets", "Flowers", "exaFLOPs"),
    {f"{model}, {epochs}": (*accuracies, float(compute)) for model, epochs, compute, accuracies in TABLE_6},
)

TABLE_7 = PaperTable(
    "Table 7: top-1 accuracy in per cent after fine-tuning, pre-trained with Adam or SGD",
    ("task", "R50 Adam", "R50 SGD", "R152x2 Adam", "R152x2 SGD"),
    {
        "ImageNet": (77.54, 78.24, 84.97, 84.37),
        "CIFAR-10": (97.67, 97.46, 99.06, 99.07),
        "CIFAR-100": (86.07, 85.17, 92.05, 91.06),
        "Oxford-IIIT Pets": (91.11, 91.00, 95.37, 94.79),
        "Oxford Flowers-102": (94.26, 92.06, 98.62, 99.32),
        "average": (89.33, 88.79, 94.01, 93.72),
    },
)

TABLE_8 = PaperTable(
    "Table 8: 5-shot accuracy on ImageNet, ViT-B/16, as a fraction",
    ("position embedding", "stem", "every layer", "every layer, shared"),
    {
        "none": (0.61382, None, None),
        "1-D": (0.64206, 0.63964, 0.64292),
        "2-D": (0.64001, 0.64046, 0.64022),
        "relative": (0.64032, None, None),
    },
    digits=5,
)

SELF_SUPERVISION = PaperTable(
    "Section 4.6: ViT-B/16 on ImageNet, top-1 accuracy in per cent, which is 2 % above training from scratch "
    "and 4 % behind supervised pre-training",
    ("pre-training", "ImageNet"),
    {"masked patch prediction, mean colour, 50 % corrupted": (79.9,)},
    digits=1,
)
