"""Between schedulers and the replicas of an estimator: bytes of gRPC, and what can happen to them.

One address per member, as a Service is; each connection goes to a replica that accepts it. Frames are
not looked at: a cut falls where it falls, mostly inside one.
"""

import asyncio
from collections.abc import Sequence

from tests.chaos.processes.fault_proxy import reset
from tests.chaos.processes.network_faults import PIECE_SECONDS, NetworkWeather, Trouble

_PIECE = 64  # bytes of a slow line: an answer of an estimator takes about a second


class StreamProxy:
    def __init__(self, backends: Sequence[int], weather: NetworkWeather) -> None:
        """`backends`: ports on loopback."""
        self._backends = list(backends)
        self.weather = weather
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy was not started"
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if self.weather.strikes(Trouble.RESET):
                reset(writer)
                return
            await self._connected(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # streams would report a task that was cancelled as a failure
        finally:
            self._open.discard(task)
            writer.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        backend = await self._any_backend()
        if backend is None:
            return  # nobody is there: the connection ends
        far_reader, far_writer = backend
        ways = [
            asyncio.ensure_future(self._pump(reader, far_writer, Trouble.BLACK_HOLE)),
            asyncio.ensure_future(self._pump(far_reader, writer, Trouble.HALF_OPEN)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            far_writer.close()

    async def _any_backend(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        self._backends.append(self._backends.pop(0))
        for port in self._backends:
            try:
                return await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                continue
        return None

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, swallowing: Trouble
    ) -> None:
        """One way of a connection; `swallowing` is the trouble that lets nothing pass this way."""
        while data := await source.read(2**16):
            if self.weather.strikes(swallowing):
                continue
            if late := self.weather.strikes(Trouble.LATENCY):
                await asyncio.sleep(late.seconds)
            if self.weather.strikes(Trouble.CUT):
                sink.write(data[: len(data) // 2])
                await sink.drain()
                reset(sink)
                return
            if self.weather.strikes(Trouble.BANDWIDTH):
                for start in range(0, len(data), _PIECE):
                    sink.write(data[start : start + _PIECE])
                    await sink.drain()
                    await asyncio.sleep(PIECE_SECONDS)
                continue
            sink.write(data)
            await sink.drain()
