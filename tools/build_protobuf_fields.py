"""Derive the protobuf field numbers of the built-in kinds from a kubectl binary.

    python tools/build_protobuf_fields.py "$(readlink -f "$(which kubectl)")"

Go programs carry compressed descriptors of the protobuf messages they know. Only facts
are kept: per message the number, name and type of each field, whether JSON leaves it out
when it is zero, and whether JSON writes its fields into the surrounding object. The latter two
come from comparing with the built-in schemas. The output is byte for byte reproducible.
"""

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))
OUTPUT = ROOT / "src/karpool_fleet/apiserver/data/protobuf_fields.json.gz"
GZIP = b"\x1f\x8b\x08\x00\x00\x00\x00\x00"
# Protobuf's own type numbers, in the letters the decoder uses.
TYPES = {1: "d", 2: "f", 3: "i", 4: "u", 5: "i", 8: "b", 9: "s", 11: "m", 12: "y", 13: "u"}
REPEATED = 3
NULLABLE = 65001  # the gogoproto option: false for fields that are no pointers in Go


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
            yield tag >> 3, value
        elif tag & 7 == 2:
            size, at = varint(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        else:
            raise ValueError(f"wire type {tag & 7} does not occur in descriptors")


def descriptors(binary: bytes) -> Iterator[bytes]:
    at = binary.find(GZIP)
    while at >= 0:
        stream = zlib.decompressobj(31)
        try:
            unpacked = stream.decompress(binary[at : at + 1_000_000])
            if stream.eof and b"k8s.io/" in unpacked[:12]:
                yield unpacked
        except zlib.error:
            pass
        at = binary.find(GZIP, at + 4)


def messages(descriptor: bytes) -> Iterator[tuple[str, bytes]]:
    package = ""
    for number, value in fields(descriptor):
        if number == 2:
            package = value.decode()
        elif number == 4:
            yield from nested(package, value)


def nested(prefix: str, message: bytes) -> Iterator[tuple[str, bytes]]:
    name = next(value.decode() for number, value in fields(message) if number == 1)
    yield f"{prefix}.{name}", message
    for number, value in fields(message):
        if number == 3:
            yield from nested(f"{prefix}.{name}", value)


def field_row(raw: bytes, properties: dict[str, Any], required: list[str], known: bool) -> list[Any]:
    parts = dict(fields(raw))
    name = parts[1].decode()
    kind = TYPES[parts[5]]
    options = dict(fields(parts[8])) if 8 in parts else {}
    flags = ""
    if parts[4] == REPEATED:
        flags += "r"
    elif options.get(NULLABLE) == 0 and name not in required:
        flags += "z"
    if kind == "m" and known and name not in properties:
        flags += "i"
    row = [parts[3], name, kind, flags]
    if kind == "m":
        row.append(parts[6].decode().lstrip("."))
    return row


def build(binary: bytes) -> dict[str, Any]:
    from karpool_fleet.apiserver.kinds.builtin import definitions

    table = {}
    for descriptor in descriptors(binary):
        for name, message in messages(descriptor):
            schema = definitions().get(name.replace("k8s.io.", "io.k8s.", 1), {})
            properties = schema.get("properties", {})
            table[name] = [
                field_row(value, properties, schema.get("required", []), bool(properties))
                for number, value in fields(message)
                if number == 2
            ]
    served = [name.replace("io.k8s.", "k8s.io.", 1) for name in definitions()]
    return reachable(table, [name for name in served if name in table])


def reachable(table: dict[str, Any], roots: list[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in kept and name in table:
            kept[name] = table[name]
            waiting += [row[4] for row in table[name] if len(row) > 4]
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kubectl", type=Path)
    binary = parser.parse_args().kubectl.read_bytes()
    packed = json.dumps(build(binary), sort_keys=True, separators=(",", ":")).encode()
    OUTPUT.write_bytes(gzip.compress(packed, 9, mtime=0))
    print(f"{OUTPUT.relative_to(ROOT)}: {OUTPUT.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
