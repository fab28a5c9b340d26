"""How every embedded component runs: what it is given, what it listens to, what becomes of it when it fails.
Start with `supervisor`; `controller` is a component with one queue, `writes` what it writes with, and
`watched_cluster` is for those who keep a picture of the cluster.
Imports nothing of the embedded world.
"""
