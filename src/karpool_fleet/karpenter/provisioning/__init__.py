"""Capacity for pods that fit nowhere: from a batch of pods to NodeClaims. Start in `provisioner`."""
