"""A sparse linear program with non-negative columns, solved by HiGHS if it is installed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, cast

import numpy as np

EXTRA = "karpool[bound]"


@dataclass(slots=True)
class LinearProgram:
    """A minimisation problem. Rows are sparse; columns are numbered in the order in which they are added."""

    costs: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def column(self, cost: float = 0.0, most: float = inf, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.most.append(most)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(
        self, columns: Sequence[int], values: Sequence[float], lower: float = -inf, upper: float = inf
    ) -> None:
        self.columns += columns
        self.values += values
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)


def is_installed() -> bool:
    try:
        import highspy
    except ImportError:
        return False
    return bool(highspy)


def least_cost(
    program: LinearProgram, *, relaxed: bool = True, nodes_max: int = 0, seconds: float | None = None
) -> float | None:
    """Return a lower bound on the cost; None without a solver, without a solution, or on timeout.

    `relaxed` drops the integrality of columns. Otherwise branch and bound stops after `nodes_max` nodes or
    `seconds`, and the bound proven by then is returned.
    """
    try:
        import highspy
    except ImportError:
        return None
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.costs), len(program.lower)
    model.col_cost_ = np.array(program.costs)
    model.col_lower_ = np.zeros(len(program.costs))
    model.col_upper_ = np.array(program.most)
    model.row_lower_, model.row_upper_ = np.array(program.lower), np.array(program.upper)
    model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    model.a_matrix_.start_ = np.array(program.starts)
    model.a_matrix_.index_ = np.array(program.columns, dtype=np.int32)
    model.a_matrix_.value_ = np.array(program.values)
    if not relaxed:
        kinds = highspy.HighsVarType
        model.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in program.whole]
    solver: Any = cast(Any, highspy.Highs)()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    if seconds is not None:
        solver.setOptionValue("time_limit", max(seconds, 0.01))
    if not relaxed:
        solver.setOptionValue("mip_max_nodes", nodes_max)
        solver.setOptionValue("mip_rel_gap", 1e-4)
    solver.passModel(model)
    solver.run()
    if relaxed:
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return float(solver.getInfo().objective_function_value)
    proven = float(solver.getInfo().mip_dual_bound)
    return proven if np.isfinite(proven) else None
