"""Decides which nodes to remove, when the saving is worth the disruption, and removes them safely.

`policy/` holds the rules and scores. `methods/` and `planning/` make a plan. `bound/` computes how close the
plan is to the optimum. `execution/` executes it.
Start with `planning/plan`, then `planning/search` and `execution/step`.
Plans are values; only `execution/actuator` writes.
Imports `provisioning` and below; no other capability.
"""
