"""How much of the campaign is run: a little with the suite, all of it with `make chaos`.

`KARPOOL_CHAOS=20` is the long profile with so many random lives; `KARPOOL_CHAOS_FROM` is the
first of their seeds, so that one that failed can be had again.
"""

import os

LIVES = int(os.environ.get("KARPOOL_CHAOS", "0"))
FIRST = int(os.environ.get("KARPOOL_CHAOS_FROM", "0"))
LONG = LIVES > 0
