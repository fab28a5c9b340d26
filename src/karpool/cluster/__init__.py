"""The one picture of a cluster.

`Cluster(aspects)` is what is known of a cluster, kept current by changes of objects: from informers
(`kube.watch.feed.cluster_watches`), from one list, or from a file (`load`). `snapshot()` is an immutable
moment of it that answers everybody. Start reading in `cluster.cluster`; which kinds are watched, and what
an object of them that cannot be read means, stands in `kinds` and nowhere else.

A consumer names the aspects it needs and pays for no others. One that was not asked for raises
`NotWatched`: it never looks empty, because empty means "there are none".

`cluster_room` holds the columns (nodes, pods, volumes) behind `Snapshot.room`, which is what the packing
kernel takes; `nodes` the join of nodes with claims, `pods` what is known of pods, `pools` NodePools and
node classes, `market` what can be bought and what cannot be had at present.
"""
