"""A small scenario: two clusters, all controllers, a quarter of an hour, something of everything."""

import textwrap

from karpool_fleet.simulation.scenario_file import Named, parse_scenario

POOL = """\
- apiVersion: karpenter.sh/v1
  kind: NodePool
  metadata: {name: general}
  spec:
    limits: {cpu: "64"}
    disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: 1m}
    template:
      spec:
        nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
        requirements:
          - {key: karpenter.k8s.aws/instance-category, operator: In, values: [m]}
          - {key: karpenter.k8s.aws/instance-cpu, operator: In, values: ["4", "8"]}
"""
WHOLE = """\
kind: Scenario
seed: 5
duration: 15m
clusters:
  - name: east
    objects:
{pool}
  - name: west
    region: us-west-2
    objects:
{pool}
karmada: {{}}
controllers:
  scheduler: {{feature-gates: SchedulingOvercommitProtection=true}}
  estimator: {{node-capacity-providers: [karpenter], feature-gates: SchedulingOvercommitProtection=true}}
  descheduler: {{descheduling-interval: 1m, unschedulable-threshold: 2m}}
  consolidator: {{interval: 1m}}
  gpu-scaler: {{}}
objects:
  - apiVersion: policy.karmada.io/v1alpha1
    kind: ClusterPropagationPolicy
    metadata: {{name: all}}
    spec:
      schedulerName: karpool-scheduler
      resourceSelectors: [{{apiVersion: apps/v1, kind: Deployment}}]
      placement:
        replicaScheduling:
          replicaSchedulingType: Divided
          replicaDivisionPreference: Weighted
          weightPreference: {{dynamicWeight: AvailableReplicas}}
workloads:
  - name: web
    every: exponential(2m)
    replicas: [1, 6]
    requests: {{cpu: 700m, memory: 1Gi}}
    lifetime: uniform(2m, 6m)
  - {{name: task, kind: Pod, cluster: west, every: 3m, requests: {{cpu: "1"}}, lifetime: 90s}}
faults:
  - {{cluster: east, at: 0s, lasts: 2m, stockOut: {{type: "*"}}}}
  - {{cluster: karmada, at: 8m, lasts: 30s, crash: scheduler}}
"""


def text(extra: str = "") -> str:
    return WHOLE.format(pool=textwrap.indent(POOL, " " * 6)) + extra


def scenario(extra: str = "") -> list[Named]:
    return parse_scenario(text(extra).encode())
