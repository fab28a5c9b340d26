"""Request bodies in the protobuf form of Go clients."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube.transport_interface import HttpRequest
from karpool_fleet.apiserver.serve.protobuf import CONTENT_TYPE, decode_protobuf
from karpool_fleet.apiserver.serve.status import ApiStatusError
from tests.apiserver.serving import Client


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\x00" + field(1, field(1, api_version) + field(2, kind)) + field(2, raw)


def metadata(name: str) -> bytes:
    label = field(11, field(1, "app") + field(2, "web"))
    return field(1, name) + field(2, "") + field(7, 0) + field(8, b"") + label


def test_maps_bytes_and_zero_values() -> None:
    raw = field(1, metadata("s")) + field(2, field(1, "key") + field(2, b"\x00\xff")) + field(3, "Opaque")
    assert decode_protobuf(envelope("v1", "Secret", raw)) == {
        "kind": "Secret",
        "apiVersion": "v1",
        "metadata": {"name": "s", "labels": {"app": "web"}},
        "data": {"key": "AP8="},
        "type": "Opaque",
    }


def test_embedded_structs_quantities_and_pointers_to_zero() -> None:
    requests = field(2, field(1, "cpu") + field(2, field(1, "250m")))
    container = field(1, "app") + field(2, "") + field(8, requests)
    volume = field(1, "cfg") + field(2, field(19, field(1, field(1, "settings"))))
    spec = field(1, volume) + field(2, container) + field(4, 0) + field(5, -1)
    decoded = decode_protobuf(envelope("v1", "Pod", field(1, metadata("p")) + field(2, spec)))
    assert decoded["spec"] == {
        "volumes": [{"name": "cfg", "configMap": {"name": "settings"}}],
        "containers": [{"name": "app", "resources": {"requests": {"cpu": "250m"}}}],
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": -1,
    }


def test_times_and_int_or_string() -> None:
    entry = field(1, "p") + field(2, field(1, 1_767_225_600) + field(2, 0))
    spec = field(1, field(1, 1) + field(2, 0) + field(3, "50%"))
    raw = field(1, metadata("b")) + field(2, spec) + field(3, field(2, entry) + field(3, 0))
    decoded = decode_protobuf(envelope("policy/v1", "PodDisruptionBudget", raw))
    assert decoded["spec"] == {"minAvailable": "50%"}
    assert decoded["status"] == {"disruptedPods": {"p": "2026-01-01T00:00:00Z"}, "disruptionsAllowed": 0}


async def test_an_object_sent_as_protobuf_is_stored_like_any_other(client: Client) -> None:
    raw = field(1, metadata("c")) + field(2, field(1, "k") + field(2, "v"))
    body = envelope("v1", "ConfigMap", raw)
    path = "/api/v1/namespaces/default/configmaps"
    answer = await client.transport.request(
        HttpRequest("POST", path, (), {"content-type": CONTENT_TYPE}, body)
    )
    assert answer.status == 201
    assert (await client.get(f"{path}/c"))["data"] == {"k": "v"}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (400, b""),
        (400, b"{}"),
        (400, b"k8s\x00\x0a\xff"),
        (400, envelope("v1", "ConfigMap", field(1, 5))),
        (400, envelope("v1", "ConfigMap", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff")),
        (400, envelope("v1", "ConfigMap", field(1, field(1, b"\xff\xfe")))),
        (415, envelope("example.com/v1", "Unicorn", b"")),
    ],
)
def test_what_cannot_be_read_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(ApiStatusError) as caught:
        decode_protobuf(body)
    assert caught.value.code == code


@given(st.binary(max_size=200), st.sampled_from(["Pod", "Node", "Event", "ConfigMap"]))
def test_noise_never_does_worse_than_a_refusal(noise: bytes, kind: str) -> None:
    try:
        decoded = decode_protobuf(envelope("v1", kind, noise))
    except ApiStatusError as error:
        assert error.code == 400
    else:
        assert decoded["kind"] == kind


def test_unknown_fields_of_any_wire_type_are_skipped() -> None:
    raw = field(1, metadata("p")) + field(2, field(2, field(1, "app")))
    number = varint(9 << 3 | 1) + struct.pack("<d", 1.5)  # an unknown field of another wire type
    assert decode_protobuf(envelope("v1", "Pod", raw + number))["metadata"]["name"] == "p"
