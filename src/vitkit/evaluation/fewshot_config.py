"""The options of few-shot evaluation."""

from typing import Literal

Method = Literal["ridge", "knn", "logistic"]
"""How the classes are learned from the features of the shots."""
L2 = 1024.0
"""The original's penalty of ridge, the same for all data (big_vision `configs/common_fewshot.py`)."""
