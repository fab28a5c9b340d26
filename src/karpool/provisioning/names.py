"""Names and label values made from any text: valid, bounded, the same every time.

What had to be changed to become valid gets a few characters of a digest, so that two
texts never end up with one name. The text itself belongs into an annotation.
"""

import hashlib
import re

from karpool.model.labels import NAME_MAX

DIGEST_MAX = 10
SLUG_MAX = 20
_NOT_IN_NAMES = re.compile(r"[^a-z0-9]+")
_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_NOT_IN_VALUES = re.compile(r"[^A-Za-z0-9._-]+")


def digest(text: str, length: int = DIGEST_MAX) -> str:
    """Lower-case hexadecimal. `surrogatepass`: texts of hostile objects need not be valid Unicode."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def slug(text: str) -> str:
    """A part of a name that people recognise; not unique, may be empty."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-")[:SLUG_MAX].strip("-")


def label_value(text: str) -> str:
    """The text itself where it is a label value; otherwise what is left of it, and a digest."""
    if not text or (len(text) <= NAME_MAX and _VALUE.match(text)):
        return text
    kept = _NOT_IN_VALUES.sub("-", text)[: NAME_MAX - 1 - 8].strip("-._")
    return f"{kept}-{digest(text, 8)}" if kept else digest(text, 8)
