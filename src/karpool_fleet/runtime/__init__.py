"""The runtime of embedded components: their context, informers, queues, writes and restarts.

Start with `supervisor`. `controller` is a component with one queue, `writes` has its write functions, and
`watched_cluster` feeds a `Cluster`. Imports nothing else of `karpool_fleet`.
"""
