"""How much room clusters have: asks estimators, reads summaries. Start with `availability`."""
