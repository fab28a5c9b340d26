"""For an unmodified karmada-scheduler: what it reads of a cluster shows what could be launched there.

Start with `summary_writer`.
"""
