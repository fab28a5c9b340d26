"""Computes the free capacity of clusters: asks estimators, reads summaries. Start with `availability`."""
