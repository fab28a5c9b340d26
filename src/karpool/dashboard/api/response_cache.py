"""Caches encoded answers until their data changes."""

import zlib
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from karpool.dashboard.api.views import ApiView

HELD_MAX = 64
_WORTH_PACKING = 2048
_ENCODER = msgspec.json.Encoder()


@dataclass(slots=True)
class CachedBody:
    """An encoded answer. `tag` is equal for equal content within one process."""

    plain: bytes
    tag: str
    _packed: bytes | None = field(default=None, repr=False)

    def packed(self) -> bytes | None:
        """Return the body as gzip, or None if it is too small."""
        if self._packed is None and len(self.plain) >= _WORTH_PACKING:
            packer = zlib.compressobj(5, wbits=31)
            self._packed = packer.compress(self.plain) + packer.flush()
        return self._packed


class ResponseCache:
    """The most recent answers. `instance` distinguishes two runs of the server."""

    def __init__(self, instance: str, limit: int = HELD_MAX) -> None:
        self._instance, self._limit = instance, limit
        self._held: OrderedDict[str, tuple[tuple[int, ...], CachedBody]] = OrderedDict()

    def get(self, key: str, version: tuple[int, ...]) -> CachedBody | None:
        held = self._held.get(key)
        if held is None or held[0] != version:
            return None
        self._held.move_to_end(key)
        return held[1]

    def put(self, key: str, version: tuple[int, ...], answer: ApiView) -> CachedBody:
        tag = f'"{self._instance}-{"-".join(map(str, version))}"'
        body = CachedBody(_ENCODER.encode(answer), tag)
        self._held[key] = version, body
        self._held.move_to_end(key)
        while len(self._held) > self._limit:
            self._held.popitem(last=False)
        return body
