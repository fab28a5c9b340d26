"""What every test needs, whatever it tests."""

import asyncio

# Up to Python 3.11 asking for "the" event loop of the main thread creates one, once. The
# asyncio plugin asks before it sets its own and nobody closes what it got, which would
# fail some later test with an unclosed loop. Saying that there is none prevents it.
asyncio.set_event_loop(None)
