"""Decide whether a conclusion of the paper holds here: it holds, it does not hold, or it cannot be told."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vitkit.evaluation.paired import SURE, PairedDifference, Scores, adjust, compare_scores
from vitkit.jobs.reproduce.designs import Claim
from vitkit.text import join_names

Outcome = Literal["holds", "does not hold", "cannot be told"]
ALIKE = 0.01
"""Two arms are alike where the whole interval of their difference is within one point. The positions of
Table 8 that the paper calls alike are at most 0.33 points apart, too little to measure on a few hundred
images."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a claim."""

    claim: Claim
    more: tuple[str, ...]
    """The arms of `Claim.more`, with the validation's choice in place of each name that ends in *."""
    less: tuple[str, ...]
    difference: PairedDifference | None
    """None where training diverged in every run of an arm."""
    adjusted_p: float | None = None
    """Its p by Holm over all claims but of the kind "alike", which have None."""
    outcome: Outcome | None = None
    """None where the paper concludes nothing."""


def judge(
    claims: Sequence[Claim], scores: Mapping[str, Scores], validation: Mapping[str, float]
) -> list[Finding]:
    """Test each claim with the scores of the arms; claims about arms that were not trained are left out.

    Args:
        claims: of a study.
        scores: of its arms by name, on the same test images.
        validation: mean score of the validation images by arm, by which an arm is chosen.
    """
    findings = []
    for claim in claims:
        more, less = (
            tuple(_choose(name, scores, validation) for name in side) for side in (claim.more, claim.less)
        )
        if "" in (*more, *less):
            continue
        difference = compare_scores([scores[arm] for arm in less], [scores[arm] for arm in more])
        findings.append(Finding(claim, more, less, difference))
    tested = [None if finding.claim.kind == "alike" else finding.difference for finding in findings]
    findings = [replace(finding, adjusted_p=p) for finding, p in zip(findings, adjust(tested), strict=True)]
    return [replace(finding, outcome=_outcome(finding)) for finding in findings]


def _choose(name: str, scores: Mapping[str, Scores], validation: Mapping[str, float]) -> str:
    """Return the arm of a name, of several arms the best by validation; "" where there is no such arm."""
    if not name.endswith("*"):
        return name if name in scores else ""
    arms = [arm for arm in scores if arm.startswith(name[:-1])]
    # Of equal scores the first, in the order of the arms: the same arm every time.
    return max(arms, key=lambda arm: validation.get(arm, -1.0), default="")


def _outcome(finding: Finding) -> Outcome | None:
    """Decide whether a claim holds, by the interval of its difference or its adjusted p."""
    difference = finding.difference
    if finding.claim.kind == "open":
        return None
    # A single seed, or pre-training, is about these weights alone, on however many images they are tested.
    if difference is None or difference.seed_variance is None or finding.claim.one_pretraining:
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
"""The verb of an outcome, singular and plural."""
