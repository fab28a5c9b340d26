"""The `karpool` command and `kubectl karpool`.

`inspect/` reads, `run/` starts controllers, `embedded/` is the only place that imports `karpool_fleet`.
Start with `main`.
Commands are imported when they run; `--help` stays at 0.1 s.
May import everything.
"""
