"""Judge the paper's conclusions by the arms of a study."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from vitkit.evaluation.paired import SURE, PairedDifference, Scores, adjust, compare_scores
from vitkit.jobs.reproduce.designs import Claim
from vitkit.jobs.study.study import TestImages
from vitkit.tasks.page import points
from vitkit.text import join_names, pluralize

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

    def choose(name: str) -> str:
        """Return the arm of a name, of several arms the best by validation; "" where there is no such arm."""
        arms = [arm for arm in scores if arm == name or (name[-1] == "*" and arm.startswith(name[:-1]))]
        # Of equal scores the first, in the order of the arms: the same arm every time.
        return max(arms, key=lambda arm: validation.get(arm, -1.0), default="")

    findings = []
    for claim in claims:
        more, less = (tuple(map(choose, side)) for side in (claim.more, claim.less))
        if "" not in (*more, *less):
            difference = compare_scores([scores[arm] for arm in less], [scores[arm] for arm in more])
            findings.append(Finding(claim, more, less, difference))
    tested = [None if finding.claim.kind == "alike" else finding.difference for finding in findings]
    return [
        replace(finding, adjusted_p=p, outcome=_outcome(finding, p))
        for finding, p in zip(findings, adjust(tested), strict=True)
    ]


def _outcome(finding: Finding, adjusted_p: float | None) -> Outcome | None:
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
    if adjusted_p is None or adjusted_p >= SURE:
        return "cannot be told"
    return "holds" if difference.mean > 0 else "does not hold"


def summarise(findings: Sequence[Finding]) -> str:
    """Count the outcomes of the paper's conclusions in a sentence; "" where none was tested."""
    outcomes = [finding.outcome for finding in findings if finding.outcome is not None]
    plurals = {"holds": "hold", "does not hold": "do not hold", "cannot be told": "cannot be told"}
    counted = [
        pluralize(outcomes.count(outcome), outcome, plurals[outcome])
        for outcome in get_args(Outcome)
        if outcome in outcomes
    ]
    conclusions = pluralize(len(outcomes), "conclusion")
    return f"Of {conclusions} of the paper, {join_names(counted)} at this size." if outcomes else ""


def say(finding: Finding, tested: TestImages) -> str:
    """Write a finding in a sentence: outcome, difference with its interval, and detectable difference."""
    difference, claim = finding.difference, finding.claim
    if difference is None:
        return f"{claim.statement}: cannot be told, because training diverged in every run of an arm."
    low, high = (points(tested.images, value, signed=True) for value in difference.interval)
    size = f"{points(tested.images, difference.mean, signed=True)} points (95 % interval {low} to {high})"
    if difference.seed_variance is None or claim.one_pretraining:
        sample = "pre-training of each kind" if claim.one_pretraining else "seed"
        return f"{claim.statement}: this cannot be told from one {sample}, {size} for these weights."
    least = (
        f"a difference of {points(tested.images, difference.detectable)} points or more would have been "
        "found in 8 of 10 studies of this size"
    )
    if claim.kind == "open":
        is_sure = finding.adjusted_p is not None and finding.adjusted_p < SURE
        sentence = size if is_sure else f"no difference found, {size}; {least}"
        return f"{claim.statement}: {sentence}."
    if finding.outcome == "cannot be told":
        margin = f"; alike means within {100 * ALIKE:g} point" if claim.kind == "alike" else ""
        return f"{claim.statement}: this cannot be told at this size, {size}; {least}{margin}."
    return f"{claim.statement}: this {finding.outcome} at this size, {size}."
