"""Capacity providers: what each autoscaler would launch. Start with `karpenter`."""
