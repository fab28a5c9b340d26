"""Bytes that are almost right: pieces of good examples, cut, doubled, swapped and salted."""

from collections.abc import Sequence
from random import Random

# What parsers stumble over.
SALT = (
    b"\x00", b"\xff", b"\x80", b"\xf0\x9f\x98\x80", b"\xe2\x80\xae", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"\r", b"\t", b"\n", b" ", b"-", b"+", b".", b"..", b"/", b"%", b"&a", b"*a", b"<<: *a",
    b"!!python/object:os.system", b"---\n", b"{", b"}", b"[", b"]", b"(", b")", b",", b":", b"\"", b"'",
    b"\\", b"\\u0000", b"\\ud800", b"null", b"true", b"NaN", b"Infinity", b"-0", b"1e999", b"1e-999",
    b"9223372036854775808", b"-9223372036854775809", b"99999999999999999999999999", b"0x7f", b"0b1",
    b"1_0", b"@every 1s", b"\xd9\xa3", b"Ei", b"in", b"notin", b"!", b"=", b"==", b"$(x)", b"{{x}}",
    b"${jndi:x}", b"%s%n", b"../../etc/passwd",
)  # fmt: skip
LARGEST = 64 * 1024


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    data = bytearray(random.choice(seeds)) if random.random() < 0.9 else bytearray()
    for _ in range(random.choice((1, 1, 2, 3, 5, 9, 30))):
        at = random.randint(0, len(data))
        match random.randrange(8):
            case 0:
                del data[at : at + random.choice((1, 1, 2, 8, 64))]
            case 1:
                data[at:at] = random.choice(SALT)
            case 2:
                data[at : at + 1] = random.choice(SALT)
            case 3 if data:
                data[min(at, len(data) - 1)] ^= 1 << random.randrange(8)
            case 4:
                data[at:at] = data[at : at + random.randint(1, 40)] * random.choice((1, 2, 3, 200))
            case 5:
                data[at:at] = random.randbytes(random.choice((1, 2, 4, 16)))
            case 6:
                other = random.choice(seeds)
                start = random.randint(0, len(other))
                data[at:at] = other[start : start + random.randint(0, 60)]
            case _:
                data[at:at] = random.choice(SALT) * random.choice((2, 10, 300))
        del data[LARGEST:]
    return bytes(data)
