"""Runs controllers: client, lease, probes, metrics, readiness, staleness, event reporting, graceful stop.
A controller is declared once; the same declaration runs in a process, a test and the embedded fleet.
Start with `controller`, then `manager`.
Options are declared once and become flags, scenario keys, chart values and reference pages.
Imports `kube` and below.
"""
