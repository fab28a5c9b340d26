"""Runs controllers: client, lease, probes, metrics, readiness, staleness, events and graceful stop.

A controller is declared once; the same declaration runs in a process, in a test and in the embedded fleet.
Options are declared once and become flags, scenario keys, chart values and reference pages.

Start with `controller`, then `manager`. Imports `kube` and below.
"""
