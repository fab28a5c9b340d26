"""`karpool explain binding`: where a workload goes in Karmada, and why."""

import asyncio
from contextlib import AsyncExitStack

import click

from karpool.cli.cluster_source import connect
from karpool.cli.exit_codes import DoesNotFit
from karpool.cli.options.cluster import ClusterOptions, connection_options, output_option
from karpool.cli.options.parameters import with_options
from karpool.cli.output.text import emit, machine
from karpool.model.karmada.binding import binding_key
from karpool.scheduler.controller.options import DecisionOptions
from karpool.scheduler.cycle import explanation
from karpool.scheduler.cycle.what_if import WhatIf, what_if
from karpool.scheduler.process import estimator_clients


@output_option("text", "json", "yaml")
@click.option("--fresh", is_flag=True, help="Show the result of a rescheduling request.")
@click.argument("name", metavar="[NAMESPACE/]NAME")
@connection_options
@with_options(DecisionOptions, "decisions")
def _binding(
    cluster: ClusterOptions, name: str, fresh: bool, output: str, decisions: DecisionOptions
) -> None:
    namespace, _, short = name.rpartition("/")
    if not short or "/" in namespace:
        raise click.BadParameter(
            f"{name!r} is not like default/web-deployment", param_hint="[NAMESPACE/]NAME"
        )
    what_if_result = asyncio.run(_explain(cluster, (namespace, short), decisions, fresh))
    emit(_shown(what_if_result, output))
    if not what_if_result.decision.is_success:
        raise DoesNotFit


async def _explain(
    cluster: ClusterOptions, name: tuple[str, str], decisions: DecisionOptions, fresh: bool
) -> WhatIf:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(cluster))
        estimators = estimator_clients(decisions.estimators, client)
        if estimators is not None:
            stack.push_async_callback(estimators.close)
        return await what_if(
            client,
            binding_key(*name),
            decisions.settings(),
            asker=estimators,
            lifetime=decisions.lifetime,
            fresh=fresh,
        )


def _shown(what_if_result: WhatIf, output: str) -> str:
    if output != "text":
        content = explanation.document(what_if_result.decision)
        content["schedulerName"] = what_if_result.binding.scheduler_name
        content["due"] = what_if_result.is_due
        content["why"] = what_if_result.why
        content["inFlight"] = what_if_result.promised
        return machine("BindingExplanation", content, output)
    lines = [explanation.text(what_if_result.decision), ""]
    if what_if_result.promised:
        lines.append(f"{what_if_result.promised} of its replicas are promised")
    due = "would be scheduled now" if what_if_result.is_due else "would not be scheduled now"
    lines.append(f"it {due} by {what_if_result.binding.scheduler_name}: {what_if_result.why}")
    return "\n".join(lines)


binding = click.Command(
    "binding",
    callback=_binding,
    help="""Show where a workload would be placed now, and why.

    The output shows the clusters that were filtered out and why, scores, estimates with their source and
    the deducted promises, and the division step by step. Only reads.

    NAME is the name of a ResourceBinding, like default/web-deployment, or without a namespace of a
    ClusterResourceBinding. Exit code 3 means that it cannot be placed.
    """,
    epilog="Example: karpool explain binding default/web-deployment --enable-scheduler-estimator",
)
binding.params = getattr(_binding, "__click_params__", [])[::-1]
