"""`karpool consolidator`: makes plans continuously, and carries them out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from karpool.cli.options.cluster import ClusterOptions, DurationParam, catalogue_option, connection_options
from karpool.cli.options.plan import PlanFlags, plan_options
from karpool.cli.output import plan_text
from karpool.cli.output.text import note
from karpool.consolidation.execution.controller import ConsolidatorOptions
from karpool.consolidation.execution.step import ExecutionSettings
from karpool.consolidation.observed import STOP_NAME, STOP_NAMESPACE
from karpool.consolidation.planning.plan import ConsolidationPlan
from karpool.consolidation.policy.policy import LARGEST_K, PolicyName
from karpool.consolidation.policy.settings import PlanSettings, parse_rate, parse_window
from karpool.consolidation.process import ProcessOptions, run
from karpool.manager.shutdown import run_until_signalled
from karpool.manager.stop import Stop
from karpool.model.errors import Invalid
from karpool.provisioning.placeholders.smart_pod import SmartPodSettings
from karpool.wire.addresses import ListenAddress, listener

T = TypeVar("T")


@click.command(epilog="Example: karpool consolidator --context prod --policy Balanced --dry-run --once")
@click.option("--dry-run", is_flag=True, help="Print plans, and write nothing.")
@click.option("--once", is_flag=True, help="Make one plan, carry it out, and end.")
@click.option(
    "--policy",
    type=click.Choice([str(name) for name in PolicyName]),
    help="For every pool, instead of its own.",
)
@click.option("--threshold", type=click.IntRange(1, LARGEST_K), help="k of the Balanced policy.")
@click.option(
    "--interval", type=DurationParam(), default="10s", show_default=True, help="Time between two plans."
)
@click.option(
    "--quiet-period",
    type=DurationParam(),
    default="15s",
    show_default=True,
    help="A move is looked at again, and made, so long after it was decided.",
)
@click.option(
    "--launch-timeout",
    type=DurationParam(),
    default=None,
    help="New nodes must be ready within this. Default: 10m, more for moves of thousands of nodes.",
)
@click.option(
    "--settle",
    type=DurationParam(),
    default="1m",
    show_default=True,
    help="Savings are measured so long after nodes are gone.",
)
@click.option(
    "--max-moves", type=click.IntRange(1), default=20, show_default=True, help="Moves under way at once."
)
@click.option(
    "--keep-moves",
    type=DurationParam(),
    default="720h",
    show_default=True,
    help="Records of moves that are over are kept so long, at least a day; at most the last 500.",
)
@click.option(
    "--maintenance-window",
    "windows",
    multiple=True,
    metavar="'CRON DURATION [ZONE]'",
    help="Begin moves only inside. Repeat for several.",
)
@click.option(
    "--rate",
    "rates",
    multiple=True,
    metavar="NODES/TIME",
    help="At most so many nodes in any such time, like 5/1h.",
)
@click.option(
    "--namespace",
    default=STOP_NAMESPACE,
    show_default=True,
    help="Of records, the lease and the stop switch.",
)
@click.option(
    "--stop-configmap", default=STOP_NAME, show_default=True, help="Its key `stop` stops everything."
)
@click.option(
    "--smart-pod-namespace",
    default=SmartPodSettings().namespace,
    show_default=True,
    help="Of placeholders for new nodes.",
)
@click.option(
    "--smart-pod-image", default=SmartPodSettings().image, show_default=True, help="Of placeholders."
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Act only while holding the lease.",
)
@click.option(
    "--metrics-bind-address",
    default=":8080",
    show_default=True,
    help="Where /metrics is served; 0 is nowhere.",
)
@click.option(
    "--health-probe-bind-address",
    default=":8081",
    show_default=True,
    help="Where probes are answered; 0 is nowhere.",
)
@plan_options
@catalogue_option
@connection_options
def consolidator(
    cluster: ClusterOptions,
    flags: PlanFlags,
    catalogue: Path | None,
    dry_run: bool,
    once: bool,
    policy: str | None,
    threshold: int | None,
    interval: float,
    quiet_period: float,
    launch_timeout: float | None,
    settle: float,
    max_moves: int,
    keep_moves: float,
    windows: tuple[str, ...],
    rates: tuple[str, ...],
    namespace: str,
    stop_configmap: str,
    smart_pod_namespace: str,
    smart_pod_image: str,
    leader_elect: bool,
    metrics_bind_address: str,
    health_probe_bind_address: str,
) -> None:
    """Take away nodes that cost more than they are worth, within budgets, and measure what it saved.

    For a replacement, capacity is asked for first. Every move is written down before it is made (see
    `karpool get moves`), looked at again right before, and rolled back when anything has changed. To stop
    everything: kubectl -n karpool-system create configmap karpool-consolidation --from-literal=stop=true
    """
    if not flags.heed_budgets:
        raise click.UsageError("--ignore-budgets is for karpool plan; a controller keeps to budgets")
    if threshold and policy and policy != PolicyName.BALANCED:
        raise click.UsageError(f"--threshold is for --policy Balanced, not for {policy}")
    chosen = replace(flags, policy=policy or "", threshold=threshold or 0)
    options = ProcessOptions(
        kubeconfig=cluster.kubeconfig,
        context=cluster.context or "",
        consolidator=ConsolidatorOptions(
            plan=_settings(chosen, windows, rates),
            execution=ExecutionSettings(
                quiet_seconds=quiet_period, launch_seconds=launch_timeout or None, settle_seconds=settle
            ),
            smart_pods=SmartPodSettings(namespace=smart_pod_namespace, image=smart_pod_image),
            namespace=namespace,
            stop_switch=(namespace, stop_configmap),
            plan_seconds=max(interval, 1.0),
            most_in_flight=max_moves,
            keep_seconds=keep_moves,
            once=once,
        ),
        region=flags.region,
        catalogue=catalogue,
        leader_elect=leader_elect,
        listen=() if once else _listeners(metrics_bind_address, health_probe_bind_address),
        timeout=cluster.request_timeout_seconds,
    )

    async def serve(stop: Stop) -> None:
        def show(plan: ConsolidationPlan) -> None:
            click.echo(plan_text.render(plan, wide=False))
            if once:
                stop.set()

        await run(
            options,
            stop,
            ready=lambda: note("consolidating"),
            show=show if dry_run else None,
            ended=note if once else lambda summary: None,
        )

    run_until_signalled(serve)


def _settings(flags: PlanFlags, windows: tuple[str, ...], rates: tuple[str, ...]) -> PlanSettings:
    return replace(
        flags.settings(flags.override),
        windows=_parsed("--maintenance-window", parse_window, windows),
        rates=_parsed("--rate", parse_rate, rates),
    )


def _listeners(metrics: str, probes: str) -> tuple[ListenAddress, ...]:
    flags = {"--metrics-bind-address": metrics, "--health-probe-bind-address": probes}
    try:
        found = [listener(flag, text) for flag, text in flags.items()]
    except Invalid as error:
        raise click.UsageError(str(error)) from None
    return tuple(dict.fromkeys(address for address in found if address is not None))


def _parsed(flag: str, parse: Callable[[str], T], given: tuple[str, ...]) -> tuple[T, ...]:
    try:
        return tuple(map(parse, given))
    except Invalid as error:
        raise click.BadParameter(str(error), param_hint=flag) from None
