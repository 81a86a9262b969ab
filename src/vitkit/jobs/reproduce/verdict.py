"""Does a conclusion of the paper hold here? Three outcomes: it holds, it does not hold, it cannot be told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitkit.evaluation.paired import SURE, PairedDifference, holm, paired_difference
from vitkit.jobs.reproduce.designs import Claim
from vitkit.text import join_names

Outcome = Literal["holds", "does not hold", "cannot be told"]
ALIKE = 0.01
"""Two arms are alike where the whole interval of their difference is within one point. The positions of
Table 8 that the paper calls alike are at most 0.33 points apart, which a few hundred images cannot tell."""
Scores = Mapping[int, NDArray[np.float64]]
"""The scores of an arm by seed, each `(N,)` from 0 to 1."""


@dataclass(frozen=True)
class Finding:
    """The result for a claim."""

    claim: Claim
    more: tuple[str, ...]
    """The arms that were compared, where the claim leaves it to the validation."""
    less: tuple[str, ...]
    difference: PairedDifference | None
    """None where training diverged in every run of an arm."""
    adjusted_p: float | None = None
    """Its p by Holm over the claims that are tested against no difference; None of those that are not."""
    outcome: Outcome | None = None
    """None where the paper says nothing."""


def judge(
    claims: Sequence[Claim], scores: Mapping[str, Scores], validation: Mapping[str, float]
) -> list[Finding]:
    """Hold each claim against the scores of the arms; claims about arms that are not there are left out.

    Args:
        claims: of a study.
        scores: of its arms by name, on the same test images.
        validation: mean score of the validation images by arm, which chooses among arms.
    """
    findings = []
    for claim in claims:
        more, less = (tuple(_choose(name, scores, validation) for name in side) for side in _sides(claim))
        if "" in (*more, *less):
            continue
        findings.append(Finding(claim, more, less, _difference(more, less, scores)))
    tested = [
        number
        for number, finding in enumerate(findings)
        if finding.difference is not None and finding.claim.kind != "alike"
    ]
    ps = [
        finding.difference.p
        for finding in findings
        if finding.difference is not None and finding.claim.kind != "alike"
    ]
    for number, adjusted in zip(tested, holm(ps), strict=True):
        findings[number] = replace(findings[number], adjusted_p=adjusted)
    return [replace(finding, outcome=_outcome(finding)) for finding in findings]


def _sides(claim: Claim) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return claim.more, claim.less


def _choose(name: str, scores: Mapping[str, Scores], validation: Mapping[str, float]) -> str:
    """Find the arm of a name: itself, or the best by validation of those that begin so; "" where none is."""
    if not name.endswith("*"):
        return name if name in scores else ""
    among = [arm for arm in scores if arm.startswith(name[:-1])]
    # The first of equals, in the order of the arms: the same one every time.
    return max(among, key=lambda arm: validation.get(arm, -1.0), default="")


def _difference(
    more: Sequence[str], less: Sequence[str], scores: Mapping[str, Scores]
) -> PairedDifference | None:
    """Compare the sum of some arms with that of others, over the seeds that finished in all of them."""
    seeds = [seed for seed in scores[more[0]] if all(seed in scores[arm] for arm in (*more, *less))]
    if not seeds:
        return None
    second, first = (
        np.stack([np.sum([scores[arm][seed] for arm in side], axis=0) for seed in seeds])
        for side in (more, less)
    )
    return paired_difference(first, second)


def _outcome(finding: Finding) -> Outcome | None:
    """Decide whether a claim holds, which it never does where its interval says that it cannot be told."""
    difference = finding.difference
    if finding.claim.kind == "open":
        return None
    # One seed is about one pair of weights, however many images they are tested on.
    if difference is None or difference.seed_variance is None:
        return "cannot be told"
    low, high = difference.interval
    if finding.claim.kind == "alike":
        if low >= -ALIKE and high <= ALIKE:
            return "holds"
        return "does not hold" if low > ALIKE or high < -ALIKE else "cannot be told"
    if finding.adjusted_p is None or finding.adjusted_p >= SURE:
        return "cannot be told"
    return "holds" if difference.mean > 0 else "does not hold"


def summarise(findings: Sequence[Finding]) -> str:
    """Count the outcomes of the paper's conclusions in a sentence; "" where none was tested."""
    outcomes = [finding.outcome for finding in findings if finding.outcome is not None]
    if not outcomes:
        return ""
    counts = {outcome: outcomes.count(outcome) for outcome in COUNTED}
    counted = [f"{count} {COUNTED[outcome][count > 1]}" for outcome, count in counts.items() if count]
    noun = "conclusion" if len(outcomes) == 1 else "conclusions"
    return f"Of {len(outcomes)} {noun} of the paper, {join_names(counted)} at this size."


COUNTED: Mapping[Outcome, tuple[str, str]] = {
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "cannot be told": ("cannot be told", "cannot be told"),
}
"""The words for one of an outcome, and for several."""
