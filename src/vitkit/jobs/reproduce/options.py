"""The names of what `vitkit reproduce` reproduces. They need no torch."""

from typing import Literal, TypeAlias

ItemName: TypeAlias = Literal[
    "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "fig10", "fig11", "fig12", "fig13",
    "fig14", "table2", "table5", "table6", "table7", "table8", "table9", "ssl",
]  # fmt: skip
"""The figures and tables of the paper, and its self-supervision (4.6)."""
