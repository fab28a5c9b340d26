"""`karpool cluster`: embedded clusters with schedulers, kubelets, autoscalers and a cloud."""

import asyncio
from pathlib import Path

import click

from karpool.cli.output.text import note
from karpool.kube.clock import RealClock
from karpool.manager.shutdown import run_until_signalled
from karpool_fleet.clusters.clock import LoopClock, loop_at
from karpool_fleet.clusters.fleet import EmbeddedFleet
from karpool_fleet.clusters.fleet_file import FleetFile, parse_fleet, read_fleet_file
from karpool_fleet.clusters.served_fleet import served

# What there is without a file: nothing runs yet, and two pools are ready to grow.
DEFAULT_FLEET = """\
apiVersion: karpool.dev/v1alpha1
kind: Fleet
clusters:
  - name: karpool
    objects:
      - apiVersion: karpenter.sh/v1
        kind: NodePool
        metadata: {name: general}
        spec:
          limits: {cpu: "200"}
          template:
            spec:
              nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
              requirements:
                - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
                - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["5"]}
                - {key: kubernetes.io/arch, operator: In, values: [amd64]}
                - {key: karpenter.sh/capacity-type, operator: In, values: [spot, on-demand]}
      - apiVersion: karpenter.sh/v1
        kind: NodePool
        metadata: {name: gpu}
        spec:
          limits: {nvidia.com/gpu: "16"}
          template:
            spec:
              nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
              requirements:
                - {key: karpenter.k8s.aws/instance-category, operator: In, values: [g]}
                - {key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}
                - {key: kubernetes.io/arch, operator: In, values: [amd64]}
              taints:
                - {key: nvidia.com/gpu, value: "true", effect: NoSchedule}
"""


@click.group()
def cluster() -> None:
    """Run embedded clusters: pods are scheduled and run, and autoscalers launch nodes."""


@cluster.command(epilog="Example: karpool cluster start --write-kubeconfig kube.yaml")
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Fleet file. Default: one cluster with a general and a GPU NodePool and no nodes.",
)
@click.option(
    "--write-kubeconfig",
    "kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Write a kubeconfig with a context for each cluster to this file.",
)
@click.option(
    "--speed",
    type=click.FloatRange(0.01, 1000),
    help="Speed of the clock, as a multiple of real time. Default: the speed in the file.",
)
def start(path: Path | None, kubeconfig: Path, speed: float | None) -> None:
    """Start the clusters of a fleet file and serve them until Ctrl-C.

    Use kubectl to read and change everything: scale a Deployment and watch NodeClaims appear, or delete a
    NodeClaim and watch its node drain.
    """
    file = read_fleet_file(path) if path else parse_fleet(DEFAULT_FLEET.encode(), "built-in fleet")
    folder = path.parent if path else Path()
    pace = file.speed if speed is None else speed
    run_until_signalled(lambda stop: _serve(stop, file, folder, kubeconfig), loop_factory=loop_at(pace))


async def _serve(stop: asyncio.Event, file: FleetFile, folder: Path, kubeconfig: Path) -> None:
    # Wall time goes on from now, at the speed of the loop.
    clock = LoopClock(RealClock().now() - asyncio.get_running_loop().time())
    async with EmbeddedFleet(file, clock, folder=folder) as fleet, served(fleet, kubeconfig) as addresses:
        for name, address in addresses.items():
            note(f"cluster {name}: {address}")
        # The control plane of Karmada, if there is one, comes first and has none of these.
        first = file.clusters[0].name
        note(f"try: kubectl --kubeconfig {kubeconfig} --context {first} get nodepools,nodes,pods -A")
        await stop.wait()
