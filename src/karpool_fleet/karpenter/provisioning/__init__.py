"""Capacity for unschedulable pods: from a batch of pods to NodeClaims. Start with `provisioner`."""
