"""`python -m karpool` is `karpool`."""

from karpool.cli.main import karpool

karpool()
