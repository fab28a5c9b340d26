"""A NodeClaim from launch to an initialised node, and the conditions of pools. Start in `lifecycle`."""
