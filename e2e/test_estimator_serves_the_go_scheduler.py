"""An unmodified karmada-scheduler places the same replicas with either estimator behind it."""

import pytest

from e2e.kubectl import Object
from e2e.scene import Make, Scene, series
from e2e.workloads import AGGREGATED, DYNAMIC


@pytest.mark.parametrize("scheduling", [DYNAMIC, AGGREGATED], ids=["dynamic", "aggregated"])
def test_placements_are_those_with_karmadas_own_estimator(scene: Scene, scheduling: Object) -> None:
    placed = {}
    makes: tuple[Make, ...] = ("go", "karpool")
    for make in makes:
        estimators = scene.estimators(make, ["static"])
        stock = scene.scheduler("go")
        namespace = scene.namespace()
        workloads = series(namespace, (7, 3, 1))
        placed[make] = scene.place(namespace, workloads, ["static"], scheduling, "default-scheduler")
        scene.take_away(namespace)
        stock.stop()
        estimators["static"].stop()
    assert placed["go"] == placed["karpool"]
    assert [sum(clusters.values()) for clusters in placed["go"].values()] == [7, 3, 1]
