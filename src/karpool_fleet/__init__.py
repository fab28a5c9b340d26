"""The embedded world: clusters that live in one process, for laptops, tests, tours and simulations.

It imports the product and is imported by nobody but `karpool.cli.embedded`; the controllers' image is
built without it. Start reading in `clusters.fleet` (all clusters of a fleet file) and `clusters.live`
(one of them).

`apiserver` is the Kubernetes API; `kube_scheduler`, `kube_controllers`, `workloads`, `kubelet`,
`karpenter`, `cluster_autoscaler` and `karmada` are the components that make its objects move; `cloud`
sells machines and `faults` breaks things. `simulation` plays scenarios, `tour` is `karpool up`.
"""
