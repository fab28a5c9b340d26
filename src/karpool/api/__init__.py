"""The Python API: answers of the commands as values, for notebooks and scripts.

`import karpool` exports it; `docs/python.md` says what is stable.

Start with `cluster`. Imports `cli`, whose commands it calls; no other package imports it.
"""
