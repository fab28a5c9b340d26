"""The Python API: what the commands answer, as values for notebooks and scripts.
`import karpool` shows it; `docs/python.md` says what is promised.
Start with `cluster`. Imports `cli`, whose commands it asks; nothing imports it.
"""
