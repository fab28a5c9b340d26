"""What a struct declares is what flags, files and helps say; what is wrong is said all at once."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest

from karpool.cli.options.parameters import controller_command, parameters
from karpool.consolidation.execution.options import ConsolidatorOptions
from karpool.consolidation.policy.options import PlanOptions
from karpool.dashboard.options import DashboardOptions
from karpool.estimator.providers import karpenter
from karpool.estimator.serving.options import POTENTIAL_NODES_MAX, EstimatorOptions
from karpool.gpu.controller.options import GpuScalerOptions
from karpool.manager.options import (
    Duration,
    InvalidOptions,
    LongerThanNothing,
    Options,
    ProbeOptions,
    option,
    option_fields,
    read_options,
)
from karpool.scheduler.controller.controller import SchedulerSettings
from karpool.scheduler.controller.options import (
    ClusterSummaryOptions,
    DecisionOptions,
    DeschedulerOptions,
    SchedulerOptions,
)
from karpool.scheduler.descheduler.descheduler import DeschedulerSettings
from karpool.scheduler.descheduler_process import descheduler_settings
from karpool.scheduler.process import scheduler_settings

EVERY = (
    GpuScalerOptions,
    ConsolidatorOptions,
    PlanOptions,
    EstimatorOptions,
    SchedulerOptions,
    DeschedulerOptions,
    ClusterSummaryOptions,
    DecisionOptions,
    DashboardOptions,
)


class _Pause(Options, frozen=True):
    least_seconds: Annotated[Duration, option("Shortest pause.", flag="least")] = 1.0
    most_seconds: Annotated[LongerThanNothing, option("Longest pause.", flag="most")] = 60.0

    def problems(self):
        if self.least_seconds > self.most_seconds:
            yield "least is more than most"


class _Worker(Options, frozen=True):
    command = "worker"

    pause: _Pause = _Pause(most_seconds=90.0)
    delete: Annotated[bool, option("Only look.", flag="no-delete", negated=True)] = True
    names: Annotated[tuple[str, ...], option("Who.", flag="name")] = ()
    count: Annotated[int, option("How many.", least=1, most=9)] = 3
    probes: Annotated[ProbeOptions, option(process_only=True)] = ProbeOptions()


class _GoWorker(_Worker, frozen=True):
    go_flags = True


def test_a_group_has_the_defaults_of_its_owner():
    assert {field.name: field.default for field in option_fields(_Worker)}["most"] == 90.0
    assert read_options(_Worker, {}) == _Worker()


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(InvalidOptions) as refused:
        read_options(
            _Worker, {"least": "soon", "count": 12, "most": "0s", "nmae": "x", "metrics-bind-address": "8080"}
        )

    said = str(refused.value)
    assert "--least: 'soon': is not a duration" in said
    assert "--count: 12: must be between 1 and 9" in said
    assert "--most: '0s': must be longer than 0s" in said
    assert "--nmae: 'x': is not a flag; there are" in said
    assert "--metrics-bind-address: '8080': must be host:port" in said


def test_rules_hold_however_a_struct_is_made():
    with pytest.raises(InvalidOptions, match="least is more than most"):
        read_options(_Worker, {"least": "2m"})
    with pytest.raises(InvalidOptions, match="least is more than most"):
        _Pause(least_seconds=120.0)
    with pytest.raises(InvalidOptions, match="--count"):
        _Worker(count=0)


def test_lists_have_commas_only_where_go_has_them():
    given = {"name": ["a,b", "c"]}
    assert read_options(_Worker, given).names == ("a,b", "c")
    assert read_options(_GoWorker, given).names == ("a", "b", "c")


def test_plain_numbers_are_seconds_as_kubectl_has_it_but_not_in_go():
    assert read_options(_Worker, {"least": 30}).pause.least_seconds == 30.0
    with pytest.raises(InvalidOptions, match="is not a duration"):
        read_options(_GoWorker, {"least": "30"})


def test_a_negated_flag_says_the_opposite_of_its_field():
    assert not read_options(_Worker, {"no-delete": True}).delete
    assert read_options(_Worker, {"no-delete": "false"}).delete


def test_what_only_a_process_has_is_refused_inside_another():
    with pytest.raises(InvalidOptions, match="is not a flag"):
        read_options(_Worker, {"metrics-bind-address": "0"}, embedded=True)


@pytest.mark.parametrize("options", [_Worker, _GoWorker])
def test_a_command_without_flags_has_the_defaults(options):
    started = []
    controller_command(options, started.append, help_text="", epilog="").main([], standalone_mode=False)
    assert started == [options()]


@pytest.mark.parametrize("options", EVERY)
def test_every_option_has_a_flag_of_its_own_and_says_what_it_is_for(options):
    names = [field.name for field in option_fields(options)]
    assert len(names) == len(set(names)) == len(parameters(options))
    assert all(field.full_help for field in option_fields(options))


@pytest.mark.long
@pytest.mark.parametrize(
    "module",
    [
        f"karpool.cli.run.{name}"
        for name in (
            "gpu_scaler",
            "consolidator",
            "estimator",
            "scheduler",
            "descheduler",
            "cluster_summary",
            "dashboard",
        )
    ],
)
def test_help_needs_nothing_heavy(module):
    heavy = ("numpy", "grpc", "structlog", "aiohttp")
    code = f"import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))"
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "src")}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == ""


def test_only_plans_may_ignore_budgets():
    offered = {
        options: {field.name for field in option_fields(options)}
        for options in (ConsolidatorOptions, PlanOptions)
    }
    assert "ignore-budgets" in offered[PlanOptions]
    assert "ignore-budgets" not in offered[ConsolidatorOptions]


def test_without_flags_everybody_is_as_usual():
    assert scheduler_settings(SchedulerOptions()) == SchedulerSettings()
    assert descheduler_settings(DeschedulerOptions()) == DeschedulerSettings(schedulers=())
    assert POTENTIAL_NODES_MAX == karpenter.NODES_MAX
