"""Flags in a scenario mean what they mean on the command line, and estimators are asked as on the wire."""

import pytest

from karpool.cli.options.parameters import controller_command
from karpool.consolidation.execution.controller import ConsolidatorSettings, consolidator_settings
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.policy.policy import PolicyName
from karpool.gpu.controller.controller import _allocator
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.model.errors import Invalid
from karpool.model.karmada.member_cluster import MemberCluster
from karpool.wire.client_protocol import ask_replicas
from karpool_fleet.clusters.clock import LoopClock, run_manual
from karpool_fleet.clusters.controllers import (
    CONTROLLERS,
    check_controllers,
    embedded_options,
)
from karpool_fleet.clusters.estimators import Estimators


def test_a_consolidator_takes_its_flags():
    given = {"policy": "Balanced", "threshold": 3, "interval": "1m", "rate": ["5/1h"], "no-replace": True}
    options = consolidator_settings(embedded_options(ConsolidatorOptions, given))
    assert options.plan.override.name is PolicyName.BALANCED
    assert options.plan.override.k == 3
    assert options.plan_seconds == 60
    assert options.plan.rates[0].nodes == 5
    assert not options.plan.replace


def test_without_flags_a_consolidator_is_as_usual():
    assert consolidator_settings(ConsolidatorOptions()) == ConsolidatorSettings()


def test_a_scaler_takes_its_flags():
    options = embedded_options(GpuScalerOptions, {"hold": "3m", "max-in-flight": 4})
    assert options.scale_up.hold == 180
    assert options.scale_up.max_in_flight == 4


def test_scalers_share_no_strategy():
    """One of them learns from what it sees."""
    options = embedded_options(GpuScalerOptions, {"strategy": "FragmentationAware"})
    first, second = (_allocator(options) for _ in range(2))
    assert first.strategy is not second.strategy


def test_a_smart_pod_lives_as_long_in_a_scenario_as_on_the_command_line():
    started = []
    flags = {"device-limit": "30m", "hold": "5m"}
    command = controller_command(GpuScalerOptions, started.append, help_text="", epilog="")
    command.main([f"--{name}={value}" for name, value in flags.items()], standalone_mode=False)

    ages = [options.maximum_age_seconds for options in (*started, embedded_options(GpuScalerOptions, flags))]

    assert ages == [3660.0, 3660.0]


@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_runs_without_flags_and_refuses_unknown_ones(name):
    check_controllers({name: {}})
    with pytest.raises(Invalid, match="is not a flag"):
        check_controllers({name: {"no-such-flag": 1}})


@pytest.mark.parametrize(
    ("name", "flags", "path"),
    [
        ("consolidator", {"threshold": 9}, "consolidator.threshold"),
        ("consolidator", {"interval": "soon"}, "consolidator.interval"),
        ("consolidator", {"no-delete": "yes"}, "consolidator.no-delete"),
        ("consolidator", {"max-moves": 0}, "consolidator.max-moves"),
        ("gpu-scaler", {"strategy": "best"}, "gpu-scaler.strategy"),
        ("scheduler", {"feature-gates": "Nope=true"}, "scheduler.feature-gates"),
        ("estimator", {"autoscaler-model": "guess"}, "estimator.autoscaler-model"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(name, flags, path):
    with pytest.raises(Invalid) as caught:
        check_controllers({name: flags})
    assert caught.value.path == path


def test_an_estimator_that_does_not_run_is_unreachable_and_not_wrong():
    async def story():
        clients = Estimators().clients(LoopClock())
        reply = await clients.ask(MemberCluster("east"), ask_replicas(None))
        await clients.close()
        return reply

    reply = run_manual(story())
    assert reply.value is None
    assert reply.lost_since is not None
    assert "no estimator of east is running" in reply.note
