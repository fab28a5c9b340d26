"""What each autoscaler would launch. Start with `karpenter`."""
