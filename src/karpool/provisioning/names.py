"""Names and label values made from any text: valid, bounded and deterministic.

A text that had to be changed to become valid gets a few characters of a digest, so that two texts never share
a name. The text itself belongs in an annotation.
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
    """Return a lower-case hexadecimal digest.

    `surrogatepass`, because texts of hostile objects need not be valid Unicode.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]


def slug(text: str) -> str:
    """Return a readable part of a name; not unique, may be empty."""
    return _NOT_IN_NAMES.sub("-", text.lower()).strip("-")[:SLUG_MAX].strip("-")


def label_value(text: str) -> str:
    """Return the text itself if it is a valid label value, otherwise a shortened text with a digest."""
    if not text or (len(text) <= NAME_MAX and _VALUE.match(text)):
        return text
    kept = _NOT_IN_VALUES.sub("-", text)[: NAME_MAX - 1 - 8].strip("-._")
    return f"{kept}-{digest(text, 8)}" if kept else digest(text, 8)
