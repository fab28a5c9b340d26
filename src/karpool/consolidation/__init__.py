"""Decides which nodes should go, when the saving is worth the disruption, and removes them safely.

`policy/` rules and scores, `methods/` and `planning/` make a plan, `bound/` says how near it is to the best
there could be, `execution/` carries it out.
Start with `planning/plan`, then `planning/search` and `execution/step`.
Plans are values; only `execution/actuator` writes.
Imports `provisioning` and below; no other capability.
"""
