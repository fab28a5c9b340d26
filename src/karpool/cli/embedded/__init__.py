"""The commands that start the embedded world: `up`, `cluster`, `apiserver`, `simulate`.

Only they import `karpool_fleet`, which the controllers' image does not hold.
"""

from importlib.util import find_spec

from karpool.cli.exit_codes import CommandFailed

if find_spec("karpool_fleet") is None:
    raise CommandFailed(
        "the embedded clusters of up, cluster, apiserver and simulate are not installed here (the Python "
        "package karpool_fleet; the controllers' image leaves it out): run the command from a checkout "
        "or from Karpool's wheel"
    )
