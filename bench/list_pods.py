"""From a list of 50,000 realistic pods over HTTP to a ready snapshot: time, and memory.

The server is another process that holds the pages ready, so that what is measured is
the client, the informers and the state. Each run is a fresh client process;
its imports are not timed, its peak memory is that of the whole process.
"""

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from random import Random
from time import perf_counter, process_time
from typing import Any

import msgspec
from aiohttp import web

from karpool.cluster import kinds
from karpool.cluster.aspects import Aspect
from karpool.cluster.cluster import Cluster
from karpool.kube.api.client import Client
from karpool.kube.api.reader import PAGE_SIZE
from karpool.kube.clock import RealClock
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.transport.http import HttpTransport
from karpool.kube.watch.feed import ClusterSink
from karpool.kube.watch.informer import Informer

NODE_COUNT = 5000
POD_COUNT = 50_000
RUNS = 3


def node(number: int) -> dict[str, Any]:
    name = f"node-{number:05}"
    amounts = {"cpu": "15890m", "memory": "62Gi", "pods": "110", "ephemeral-storage": "95Gi"}
    return {
        "metadata": {
            "name": name,
            "uid": f"00000000-0000-4000-8000-{number:012}",
            "resourceVersion": str(number + 1),
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "node.kubernetes.io/instance-type": "m6.4xlarge",
                "topology.kubernetes.io/region": "eu-1",
                "topology.kubernetes.io/zone": f"eu-1{'abc'[number % 3]}",
            },
        },
        "spec": {"providerID": f"cloud:///eu-1/{name}"},
        "status": {"allocatable": amounts, "capacity": amounts, "conditions": _conditions("Ready")},
    }


def pod(number: int, random: Random) -> dict[str, Any]:
    """About 4 kB, as the API server sends it: probes, volumes, managed fields and status included."""
    workload = number % 400
    namespace, app = f"team-{workload % 20}", f"app-{workload}"
    name = f"{app}-5d8c7b9f6-{number:05}"
    uid = f"10000000-0000-4000-8000-{number:012}"
    probe = {
        "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
        "initialDelaySeconds": 5,
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    container = {
        "name": "app",
        "image": f"registry.example.com/{namespace}/{app}:v1.{workload}",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{each}", "value": f"value-{each}"} for each in range(8)],
        "resources": {
            "requests": {"cpu": f"{100 * (1 + workload % 8)}m", "memory": f"{128 * (1 + workload % 6)}Mi"},
            "limits": {"memory": "2Gi"},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/app"},
            {
                "name": "kube-api-access",
                "readOnly": True,
                "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
            },
        ],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"allowPrivilegeEscalation": False, "runAsNonRoot": True},
    }
    expiring = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "metadata": {
            "name": name,
            "generateName": f"{app}-5d8c7b9f6-",
            "namespace": namespace,
            "uid": uid,
            "resourceVersion": str(100_000 + number),
            "creationTimestamp": "2025-03-01T10:00:00Z",
            "labels": {"app": app, "pod-template-hash": "5d8c7b9f6", "team": namespace},
            "annotations": {"prometheus.io/scrape": "true", "checksum/config": f"{workload:064x}"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": f"{app}-5d8c7b9f6",
                    "uid": f"20000000-0000-4000-8000-{workload:012}",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [_managed("kube-controller-manager", uid), _managed("kubelet", uid)],
        },
        "spec": {
            "volumes": [
                {"name": "config", "configMap": {"name": app, "defaultMode": 420}},
                {"name": "kube-api-access", "projected": {"sources": [], "defaultMode": 420}},
            ],
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default",
            "nodeName": f"node-{random.randrange(NODE_COUNT):05}",
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", **expiring},
                {"key": "node.kubernetes.io/unreachable", **expiring},
            ],
            "priority": 0,
            "enableServiceLinks": True,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {
            "phase": "Running",
            "conditions": _conditions("Initialized", "Ready", "ContainersReady", "PodScheduled"),
            "hostIP": "10.0.0.1",
            "podIP": "10.1.0.1",
            "startTime": "2025-03-01T10:00:01Z",
            "containerStatuses": [
                {
                    "name": "app",
                    "state": {"running": {"startedAt": "2025-03-01T10:00:05Z"}},
                    "ready": True,
                    "restartCount": 0,
                    "image": container["image"],
                    "imageID": f"registry.example.com/{namespace}/{app}@sha256:{workload:064x}",
                    "containerID": f"containerd://{number:064x}",
                    "started": True,
                }
            ],
            "qosClass": "Burstable",
        },
    }


def _conditions(*types: str) -> list[dict[str, Any]]:
    since = "2025-03-01T10:00:07Z"
    return [
        {"type": each, "status": "True", "lastProbeTime": None, "lastTransitionTime": since} for each in types
    ]


def _managed(manager: str, uid: str) -> dict[str, Any]:
    fields: dict[str, Any] = {f"f:{each}": {} for each in ("restartPolicy", "schedulerName", "tolerations")}
    fields["f:containers"] = {'k:{"name":"app"}': {".": {}, "f:image": {}, "f:resources": {"f:limits": {}}}}
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2025-03-01T10:00:07Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:ownerReferences": {f'k:{{"uid":"{uid}"}}': {}}}, "f:spec": fields},
    }


# The server process


def pages(items: list[dict[str, Any]], size: int = PAGE_SIZE) -> list[bytes]:
    found = []
    for start in range(0, len(items), size):
        more = str(start + size) if start + size < len(items) else ""
        meta = {"resourceVersion": "500000", "continue": more}
        found.append(msgspec.json.encode({"metadata": meta, "items": items[start : start + size]}))
    return found


async def serve() -> None:
    random = Random(5)
    held = {
        "nodes": pages([node(number) for number in range(NODE_COUNT)]),
        "pods": pages([pod(number, random) for number in range(POD_COUNT)]),
    }

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            quiet = web.StreamResponse(headers={"content-type": "application/json"})
            await quiet.prepare(request)
            await asyncio.sleep(3600)
            return quiet
        number = int(request.query.get("continue") or 0) // PAGE_SIZE
        return web.Response(body=held[request.match_info["plural"]][number], content_type="application/json")

    app = web.Application()
    app.router.add_get("/api/v1/{plural}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    size = sum(map(len, held["pods"])) / POD_COUNT
    print(json.dumps({"url": f"http://127.0.0.1:{port}", "bytes_per_pod": round(size)}), flush=True)
    await asyncio.Event().wait()


# The client process


async def listed(url: str) -> dict[str, float]:
    cluster = Cluster(Aspect.ROOM)
    start, cpu_start = perf_counter(), process_time()
    async with Client(HttpTransport(ClusterConfig("bench", url))) as client:
        informers: list[Informer[Any]] = []
        for kind in (kinds.NODES, kinds.PODS):
            informers.append(Informer(client, kind.resource, into=kind.struct, keep=False))
            informers[-1].add_sink(ClusterSink(cluster, kind, RealClock()))
        running = [asyncio.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.synced.wait()
        snapshot = cluster.room.snapshot()
        seconds, cpu_seconds = perf_counter() - start, process_time() - cpu_start
        for task in running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    if snapshot.n != NODE_COUNT or len(snapshot.bound.node) != POD_COUNT:
        raise RuntimeError(f"{snapshot.n} nodes and {len(snapshot.bound.node)} pods arrived")
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


# The benchmark


def runs() -> tuple[list[dict[str, float]], int]:
    command = [sys.executable, "-m", "bench.list_pods"]
    with subprocess.Popen([*command, "serve"], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            found = [
                json.loads(
                    subprocess.run(
                        [*command, ready["url"]], stdout=subprocess.PIPE, check=True, text=True
                    ).stdout
                )
                for _ in range(RUNS)
            ]
        finally:
            server.terminate()
    return found, ready["bytes_per_pod"]


def benchmarks() -> list[Callable[[], dict[str, Any]] | dict[str, Any]]:
    measured: list[tuple[list[dict[str, float]], int]] = []

    def list_pods_seconds() -> dict[str, Any]:
        measured.append(runs())
        found, size = measured[0]
        name = f"list of {POD_COUNT:,} pods of {size:,} bytes to a snapshot"
        return {"name": name, "unit": "s", "values": [each["seconds"] for each in found], "target": 4.0}

    def list_pods_cpu() -> dict[str, Any]:
        """What a busy machine does not change."""
        found, _ = measured[0] if measured else runs()
        name = "the same, CPU time of the client process"
        return {"name": name, "unit": "s", "values": [each["cpu_seconds"] for each in found], "target": None}

    def list_pods_memory() -> dict[str, Any]:
        found, _ = measured[0] if measured else runs()
        name = "the same, peak memory of the client process"
        return {"name": name, "unit": "MiB", "values": [each["mib"] for each in found], "target": 350.0}

    return [list_pods_seconds, list_pods_cpu, list_pods_memory]


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve())
    else:
        print(json.dumps(asyncio.run(listed(sys.argv[1]))))
