"""For an unmodified karmada-scheduler: writes what could be launched in a cluster into its summary.

Start with `summary_writer`.
"""
