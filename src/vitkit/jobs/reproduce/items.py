"""The figures and tables of the paper that can be reproduced, with their needs, conclusions and numbers.

An item has a design, whose arms are trained here, or shows the results of other verbs. Tables are numbered as
in arXiv 2010.11929v2. Table 6 stands in `jobs/cost.py`, and Table 9 in `data/layouts/vtab_tasks.py`, where
they are compared with our numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from vitkit.jobs.cost import TABLE_6
from vitkit.jobs.options import ItemName
from vitkit.jobs.reproduce import designs
from vitkit.jobs.reproduce.designs import Base, Design
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


TRAINED = "nothing: it trains on --data, digits if none is given"
"""The need of studies that train all of their models."""


@dataclass(frozen=True)
class Item:
    """A figure or a table of the paper."""

    title: str
    conclusion: str
    """The paper's conclusion."""
    at_paper_size: str
    """The compute that the paper's own size would need."""
    setting: tuple[tuple[str, str], ...]
    """The paper's data, model and so on, which the page shows beside ours: a topic and its value each."""
    paper: tuple[PaperTable, ...] = ()
    """The paper's numbers; none where it shows a curve without numbers."""
    design: Callable[[Base], Design] | None = None
    """Makes the arms that are trained here; None where the results of other verbs are shown."""
    pictures: tuple[str, ...] = ()
    """The names of the pictures of `vitkit inspect` that are shown."""
    needs_start: bool = False
    """Whether it is about a given checkpoint."""
    timed: bool = False
    """Whether the speed of training is part of the result."""
    needs: str = TRAINED
    here: str = "--minutes, 30 if none are given"
    """The time that it takes on this machine."""


PRETRAINED_224 = ("image size", "224 pixels")
PRETRAINED = (PRETRAINED_224, ("batch", "4,096 images"))
JFT = ("data", "JFT-300M: 303 million images, 18 thousand classes")
A_START = "a trained model (--start)"
TRAINED_MODEL = f"{A_START}; images (--images), unless it is a run with test images"
ONE_RUN = "one pre-training of ViT-B/16 on JFT-300M is 224 exaFLOPs (Table 6)"
JFT_MODELS = (("model", "ViT-H/14, ViT-L/16"), JFT)
FIVE_SHOT = ("measured", "5-shot accuracy on ImageNet")
FINE_TUNED = ("measured", "top-1 accuracy after fine-tuning")
FINE_TUNING_STEPS = ("steps", "20,000 for ImageNet, 10,000 for CIFAR, 500 for Pets and Flowers")

VTAB = Item(
    "Table 9 (D.10): the 19 tasks of VTAB-1k",
    "ViT-H/14 pre-trained on JFT-300M has the best mean, 77.6 %.",
    "ViT-H/14 on JFT-300M: 4,262 exaFLOPs; then 19 times 2,500 steps of 512 images",
    (*JFT_MODELS, ("image size", "384 pixels")),
    needs=f"{A_START} and the folder of VTAB-1k's tasks (--data)",
    here="19 tasks of 2,500 steps: days without a GPU, --steps for fewer",
    needs_start=True,
)


ATTENTION = Item(
    "Figure 6: attention from the class token to the image",
    "The model attends to the parts of the image that matter for its class.",
    "one trained ViT-L/16; then a minute",
    (("model", "ViT-L/16"),),
    pictures=("attention-rollout",),
    needs=TRAINED_MODEL,
    here="about a minute",
    needs_start=True,
)

ITEMS: Mapping[ItemName, Item] = {
    "fig2": replace(
        VTAB,
        title="Figure 2: VTAB by group of tasks",
        conclusion="ViT-H/14 is ahead of BiT-R152x4 and other methods on the natural and structured tasks; "
        "on the specialized ones the first two are alike.",
        at_paper_size="ViT-H/14 on JFT-300M: 4,262 exaFLOPs (Table 6), 2,500 TPUv3-core-days (Table 2)",
        setting=(("model", "ViT-H/14"), JFT, ("image size", "384 pixels")),
    ),
    "fig3": Item(
        "Figure 3: transfer by the size of the pre-training data, with regularisation tuned",
        "On the smallest data set large ViTs are behind small ones and behind ResNets, in spite of "
        "regularisation; with larger data sets ViTs overtake.",
        f"five ViTs on three data sets; {ONE_RUN}",
        (
            ("data", "ImageNet, ImageNet-21k, JFT-300M: 1.3, 14 and 303 million images"),
            ("model", "ViT-B/16 to ViT-H/14, BiT"),
            *PRETRAINED,
            ("measured", "top-1 accuracy on ImageNet after fine-tuning"),
        ),
        (DATA_SIZES,),
        designs.data_size_regularised,
    ),
    "fig4": Item(
        "Figure 4: few-shot accuracy by the size of the pre-training data",
        "With the same hyper-parameters ViTs overfit more than ResNets of comparable cost on the smaller "
        "subsets, and overtake them on the larger ones.",
        f"four subsets of JFT-300M for each model; {ONE_RUN}",
        (
            ("data", "9, 30, 90 and 300 million images of JFT-300M"),
            ("model", "ViT-b/32 to ViT-L/16, BiT R50x1 and R152x2"),
            *PRETRAINED,
            ("measured", "linear 5-shot accuracy on ImageNet"),
        ),
        design=designs.data_size,
    ),
    "fig5": Item(
        "Figure 5: transfer by the compute of the pre-training",
        "ViTs are ahead of ResNets at the same compute; hybrids are ahead of ViTs at small compute, and the "
        "difference vanishes for larger models.",
        "all rows of Table 6: 50 to 4,262 exaFLOPs each",
        (
            JFT,
            ("model", "ViT-B/32 to ViT-H/14, ResNet50x1 to 200x3, five hybrids"),
            *PRETRAINED,
            ("measured", "top-1 accuracy after fine-tuning, mean of data sets"),
        ),
        (TABLE_6_WHOLE,),
        designs.matched_compute,
    ),
    "fig6": ATTENTION,
    "fig7": replace(
        ATTENTION,
        title="Figure 7: filters, position embeddings and attention distance",
        conclusion="The filters look like a basis of the fine structure of a patch; near patches have "
        "similar position embeddings; some heads attend globally already in the lowest layers.",
        at_paper_size="trained ViT-L/32 and ViT-L/16; then a minute",
        setting=(("model", "ViT-L/32, ViT-L/16"), ("images for the distance", "128")),
        pictures=("filters", "positions", "attention-distance"),
    ),
    "fig8": Item(
        "Figure 8 (D.2): scaling dimensions of the ViT",
        "Depth brings most and width least for its cost; smaller patches bring much without more parameters; "
        "scaling all of them together is robust.",
        "a pre-training for each shape; the text gives no compute",
        (("model", "8 layers, width 1,024, MLP 2,048, patches of 32 pixels"), *PRETRAINED),
        design=designs.shapes,
    ),
    "fig9": Item(
        "Figure 9 (D.3): class token or global average pooling",
        "Both work equally well, but need different learning rates: 8e-4 and 3e-4 are compared.",
        f"a pre-training for each of three settings; {ONE_RUN}",
        (("learning rates", "3e-4 and 8e-4"), *PRETRAINED),
        design=designs.heads,
    ),
    "fig10": replace(
        ATTENTION,
        title="Figure 10 (D.4): position embeddings of models trained with other hyper-parameters",
        conclusion="Neighbouring patches have similar position embeddings; the pattern depends on the "
        "hyper-parameters of the training.",
        at_paper_size="several trained models; then a minute",
        setting=(("settings", "learning rate, weight decay, epochs"),),
        pictures=("positions",),
        needs="trained models, one for each setting (--start A B C)",
    ),
    "fig11": replace(
        ATTENTION,
        title="Figure 11 (D.7): size of the attended area by head and depth",
        conclusion="Some heads of the lowest layers attend to most of the image; in a hybrid fewer heads are "
        "so local.",
        at_paper_size="trained ViT-L/16 and R50x1+ViT-L/16; then a minute",
        setting=(("model", "ViT-L/16, R50x1+ViT-L/16"), ("images", "128, 224 pixels wide")),
        pictures=("attention-distance",),
    ),
    "fig12": Item(
        "Figure 12 (D.5): empirical cost",
        "On a TPUv3 ViTs are about as fast as ResNets of similar size, and larger batches fit into memory.",
        "a TPUv3 core and all models of Table 6",
        (("device", "TPUv3"), ("image size", "64 to 512 pixels")),
        needs="nothing: three models are timed; others with --start",
    ),
    "fig13": Item(
        "Figure 13 (D.6): axial attention",
        "Axial-ViT-B/32 and Axial-ViT-B/16 are ahead of ViT-B/32 and ViT-B/16 in accuracy, at the price of "
        "more compute.",
        f"two pre-trainings of axial models; {ONE_RUN}",
        (("model", "Axial-ViT-B/32 and B/16, AxialResNet50"), *PRETRAINED, FIVE_SHOT),
        design=designs.axial,
        timed=True,
    ),
    "fig14": replace(ATTENTION, title="Figure 14 (D.8): attention maps of more images"),
    "table2": Item(
        "Table 2: comparison with the state of the art",
        "ViT-H/14 pre-trained on JFT-300M is ahead of BiT-L and Noisy Student on all data sets, at a "
        "fraction of the compute of the pre-training.",
        "ViT-H/14 on JFT-300M: 4,262 exaFLOPs, 2,500 TPUv3-core-days; then 20,000 steps of 512 images",
        (
            *JFT_MODELS,
            ("image size", "384 pixels; for ImageNet 512 (L/16) and 518 (H/14)"),
            ("batch", "512 images"),
            FINE_TUNING_STEPS,
        ),
        (TABLE_2,),
        designs.finetuning,
        needs=f"{A_START} and the data set (--data), with --recipe finetune-imagenet or another",
        needs_start=True,
    ),
    "table5": Item(
        "Table 5: all ViTs on all data sets",
        "Larger models are ahead where they were pre-trained on more images, and behind on ImageNet alone.",
        "14 pre-trainings; one of ViT-B/16 on JFT-300M is 224 exaFLOPs (Table 6)",
        (
            ("model", "ViT-B/32 to ViT-H/14"),
            ("data", "ImageNet, ImageNet-21k, JFT-300M: 1.3, 14 and 303 million images"),
            ("image size", "384 pixels"),
            ("batch", "512 images"),
            FINE_TUNING_STEPS,
        ),
        (TABLE_5,),
        designs.finetuning,
        needs=f"{A_START} and the data set (--data), with --recipe finetune-cifar10 or another",
        needs_start=True,
    ),
    "table6": Item(
        "Table 6: accuracy and compute of the pre-training",
        "ViTs need less compute than ResNets for the same accuracy.",
        "50 to 4,262 exaFLOPs a row",
        (JFT, PRETRAINED_224),
        (TABLE_6_WHOLE,),
        needs="nothing: compute is counted; the accuracies are the paper's alone",
        here="seconds",
    ),
    "table7": Item(
        "Table 7 (D.1): Adam or SGD for pre-training ResNets",
        "Adam is ahead of SGD on most data sets and on average.",
        "ResNet50x1 and ResNet152x2 on JFT-300M, 50 and 563 exaFLOPs (Table 6), each twice",
        (JFT, ("model", "R50x1, R152x2"), *PRETRAINED, FINE_TUNED),
        (TABLE_7,),
        designs.optimisers,
    ),
    "table8": Item(
        "Table 8 (D.4): position embeddings and their place",
        "Without a position embedding the accuracy is lower; the kinds and places are alike.",
        f"eight pre-trainings of ViT-B/16; {ONE_RUN}",
        (("model", "ViT-B/16"), *PRETRAINED, FIVE_SHOT),
        (TABLE_8,),
        designs.positions,
    ),
    "table9": VTAB,
    "ssl": Item(
        "Section 4.6 (B.1.2): masked patch prediction",
        "ViT-B/16 after masked patch prediction is 2 % ahead of training from scratch and 4 % behind "
        "supervised pre-training; the mean colour is the best target, and 15 % corrupted patches are "
        "slightly worse than 50 %.",
        "ViT-B/16 for 1 million steps of 4,096 images on JFT-300M",
        (
            ("data", "JFT-300M without labels; fine-tuned on ImageNet"),
            ("model", "ViT-B/16"),
            *PRETRAINED,
            ("steps", "1,000,000 of pre-training"),
        ),
        (SELF_SUPERVISION,),
        designs.self_supervision,
    ),
}
"""Each by its name on the command line, in the order of `ItemName`."""
