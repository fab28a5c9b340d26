"""A pool of GPUs that is open to consolidation; the week is in `python -m tests.gpu.shares_and_moves`."""

import pytest

from karpool.consolidation.execution.record import MovePhase
from tests.gpu.shares_and_moves import lived


@pytest.mark.long
def test_no_share_is_lost_while_nodes_are_taken_away():
    week = lived(hours=10.0, seed=1)
    assert week.violations == []
    assert week.unserved == []
    assert week.moves[MovePhase.DONE] >= 3 and week.deletions >= 3, "else nothing was tried"
