"""Revisions of pod templates: their hashes, and ControllerRevisions.

A hash depends only on the template and a collision count, so that a restarted controller finds its own
objects again.
"""

import hashlib
from typing import Any

import msgspec

from karpool.kube.api.decoding import Object
from karpool.model.kubernetes.api_resources import ApiResource

CONTROLLERREVISIONS = ApiResource("apps", "v1", "controllerrevisions", "ControllerRevision")

# No vowels and no 0, 1, 3, as in generated names.
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_DIGITS = 10
_encode = msgspec.json.Encoder(order="sorted").encode


def template_hash(template: Any, collisions: int = 0) -> str:
    """Return at most ten characters that are valid in a label and at the end of a name."""
    digest = hashlib.blake2b(_encode(template), digest_size=4, salt=collisions.to_bytes(8, "big"))
    return "".join(_LETTERS[int(digit)] for digit in str(int.from_bytes(digest.digest(), "big"))[:_DIGITS])


def same_template(one: Object, other: Object, ignored_label: str) -> bool:
    """Whether two pod templates are equal except for one label."""
    return _plain(one, ignored_label) == _plain(other, ignored_label)


def _plain(template: Object, ignored_label: str) -> Object:
    metadata = dict(template.get("metadata") or {})
    labels = {k: v for k, v in (metadata.pop("labels", None) or {}).items() if k != ignored_label}
    # kubectl writes `creationTimestamp: null` into templates; null means absent.
    metadata = {key: value for key, value in metadata.items() if value is not None}
    return {**template, "metadata": {**metadata, "labels": labels}}


REVISION_HASH = "controller-revision-hash"


def revision_body(owner: Object, reference: Object, number: int, collisions: int) -> Object:
    """Return a ControllerRevision of the current template, as `kubectl rollout undo` applies it."""
    meta, template = owner["metadata"], owner["spec"]["template"]
    suffix = template_hash(template, collisions)
    return {
        "metadata": {
            "name": f"{meta['name']}-{suffix}",
            "namespace": meta["namespace"],
            "labels": {**(template.get("metadata", {}).get("labels") or {}), REVISION_HASH: suffix},
            "annotations": _handed_on(meta.get("annotations") or {}),
            "ownerReferences": [reference],
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }


def template_of(revision: Object) -> Object:
    template = dict((revision.get("data") or {}).get("spec", {}).get("template") or {})
    template.pop("$patch", None)
    return template


def _handed_on(annotations: Object) -> Object:
    applied = "kubectl.kubernetes.io/last-applied-configuration"
    return {key: value for key, value in annotations.items() if key != applied}
