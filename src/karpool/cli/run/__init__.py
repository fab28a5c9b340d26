"""Commands that start controllers and servers, and `apply`. Start with `consolidator`."""

import sys

# structlog loads rich, where it is installed, for tracebacks that we never draw: five MiB in every
# controller, and a twentieth of its start. Who draws tables loads it as usual.
if "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]
    import structlog  # noqa: F401

    del sys.modules["rich"]
