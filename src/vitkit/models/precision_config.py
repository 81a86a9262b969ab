"""The precisions that a model can compute in. They need no torch."""

from typing import Literal

Precision = Literal["auto", "float32", "bfloat16"]
"""The precision of matrix products and convolutions, by autocast; weights stay float32. auto: the rule of
`runs/machine.py` chooses by device, width and phase."""
