"""Messages of events about moves. Words and reasons are Karpenter's."""

from collections.abc import Sequence

from karpool.consolidation.policy.scoring import TOLERANCE, MoveScore

APPROVED = "ConsolidationApproved"
REJECTED = "ConsolidationRejected"
CANDIDATE = "ConsolidationCandidate"


def approved(score: MoveScore, k: int) -> str:
    """Describe the score of a move, approved or not: the comparison sign shows which."""
    return compared(
        score.score, score.threshold, k, 100 * score.savings_fraction, 100 * score.disruption_fraction
    )


def compared(
    score: float, threshold: float, k: int, savings_percent: float, disruption_percent: float
) -> str:
    # The decision has a tolerance, so an approved score may round to less than the threshold.
    sign = ">=" if score >= threshold - TOLERANCE else "<"
    return (
        f"score {score:.2f} {sign} threshold {threshold:.2f} "
        f"(k: {k}, savings {savings_percent:.1f}%, disruption {disruption_percent:.1f}%)"
    )


def command(decision: str, nodes: Sequence[str], replacements: int = 0) -> str:
    """Describe a move in one line: `replace: [a, b] -> [1 replacement]`."""
    text = f"{decision}: [{', '.join(nodes)}]"
    if not replacements:
        return text
    return f"{text} -> [{replacements} replacement{'' if replacements == 1 else 's'}]"


def candidate(command_text: str, savings_per_hour: float) -> str:
    return f"Consolidation candidate: {command_text} (savings: ${savings_per_hour:.2f})"


def rejected(command_text: str, reason: str, savings_per_hour: float) -> str:
    """Describe a rejected move. `reason`: budget, scheduling, churn or unknown."""
    return f"Consolidation rejected: {command_text}, reason: {reason} (savings: ${savings_per_hour:.2f})"
