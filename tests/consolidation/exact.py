"""The most that can be saved in a small cluster, by a solver for mixed-integer programs (HiGHS).

Every node may go or stay; pods of nodes that go are put on nodes that stay or on new nodes of any
type; what a node's going disturbs may be bounded in sum. Nothing here is shared with the planner.
"""

from dataclasses import dataclass

import highspy
import numpy as np

Amounts = tuple[int, int]  # milli-CPU, MiB


@dataclass(frozen=True)
class SmallNode:
    price: float
    room: Amounts
    pods: tuple[Amounts, ...]

    @property
    def free(self) -> Amounts:
        return (
            self.room[0] - sum(cpu for cpu, _ in self.pods),
            self.room[1] - sum(memory for _, memory in self.pods),
        )

    @property
    def disruption(self) -> float:
        return 1.0 + len(self.pods)


@dataclass(frozen=True)
class SmallType:
    name: str
    price: float
    room: Amounts


def most_saved(
    nodes: list[SmallNode], types: list[SmallType], *, new_nodes: int, disruption: float | None = None
) -> float:
    """USD per hour. Pods of one node and size are counted together."""
    model = _Model()
    goes = [model.whole(1, cost=-node.price) for node in nodes]
    groups = [
        (home, size, node.pods.count(size))
        for home, node in enumerate(nodes)
        for size in sorted(set(node.pods))
    ]
    bought = [[model.whole(1, cost=each.price) for each in types] for _ in range(new_nodes)]
    sent: list[dict[int, int]] = []
    for home, _, count in groups:
        places = {place: model.whole(count) for place in range(len(nodes) + new_nodes) if place != home}
        model.row({**dict.fromkeys(places.values(), 1.0), goes[home]: -float(count)}, 0.0, 0.0)
        sent.append(places)
    for place, node in enumerate(nodes):
        for index in (0, 1):
            used = {sent[g][place]: float(size[index]) for g, (h, size, _) in enumerate(groups) if h != place}
            model.row({**used, goes[place]: float(node.free[index])}, None, float(node.free[index]))
        for g, (home, _, count) in enumerate(groups):
            if home != place:
                model.row({sent[g][place]: 1.0, goes[place]: float(count)}, None, float(count))
    for number in range(new_nodes):
        place = len(nodes) + number
        model.row(dict.fromkeys(bought[number], 1.0), None, 1.0)
        for index in (0, 1):
            used = {sent[g][place]: float(size[index]) for g, (_, size, _) in enumerate(groups)}
            offered = {bought[number][t]: -float(each.room[index]) for t, each in enumerate(types)}
            model.row({**used, **offered}, None, 0.0)
        if number:  # the dearer first: the same mix is not looked at twice
            before = {column: -types[t].price for t, column in enumerate(bought[number - 1])}
            after = {column: types[t].price for t, column in enumerate(bought[number])}
            model.row({**before, **after}, None, 0.0)
    if disruption is not None:
        model.row({goes[i]: node.disruption for i, node in enumerate(nodes)}, None, disruption + 1e-6)
    return -model.minimum()


class _Model:
    def __init__(self) -> None:
        self._costs: list[float] = []
        self._most: list[float] = []
        self._rows: list[tuple[dict[int, float], float, float]] = []

    def whole(self, most: int, *, cost: float = 0.0) -> int:
        """A new variable, a whole number from 0."""
        self._costs.append(cost)
        self._most.append(float(most))
        return len(self._costs) - 1

    def row(self, weights: dict[int, float], least: float | None, most: float | None) -> None:
        self._rows.append(
            (
                weights,
                -highspy.kHighsInf if least is None else least,
                highspy.kHighsInf if most is None else most,
            )
        )

    def minimum(self) -> float:
        program = highspy.HighsLp()
        count = len(self._costs)
        program.num_col_, program.num_row_ = count, len(self._rows)
        program.col_cost_ = np.array(self._costs)
        program.col_lower_, program.col_upper_ = np.zeros(count), np.array(self._most)
        program.row_lower_ = np.array([least for _, least, _ in self._rows])
        program.row_upper_ = np.array([most for _, _, most in self._rows])
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.cumsum([0, *(len(weights) for weights, _, _ in self._rows)])
        program.a_matrix_.index_ = np.array([key for weights, _, _ in self._rows for key in weights])
        program.a_matrix_.value_ = np.array(
            [value for weights, _, _ in self._rows for value in weights.values()]
        )
        program.integrality_ = [highspy.HighsVarType.kInteger] * count
        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("mip_rel_gap", 1e-6)
        solver.passModel(program)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            raise AssertionError(f"the solver ended with {solver.getModelStatus()}")
        return float(solver.getInfo().objective_function_value)
