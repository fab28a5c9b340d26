import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from karpool.kube import errors
from karpool.kube.errors import (
    AlreadyExists,
    Conflict,
    Denied,
    Gone,
    NotFound,
    Rejected,
    ServerFault,
    Throttled,
)
from karpool.kube.transport_interface import HttpRequest, HttpResponse

REQUEST = HttpRequest("PATCH", "/api/v1/namespaces/default/pods/web")


def error_for(code, reason="", message="", headers=None, **details):
    body = msgspec.json.encode({"kind": "Status", "reason": reason, "message": message, "details": details})
    return errors.from_response(REQUEST, HttpResponse(code, headers or {}, body), now=1000.0)


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (400, "BadRequest", Rejected),
        (401, "Unauthorized", Denied),
        (403, "Forbidden", Denied),
        (404, "NotFound", NotFound),
        (405, "MethodNotAllowed", Rejected),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (410, "Gone", Gone),
        (410, "Expired", Gone),
        (422, "Invalid", Rejected),
        (429, "TooManyRequests", Throttled),
        (500, "InternalError", ServerFault),
        (503, "", ServerFault),
        (302, "", Rejected),
    ],
)
def test_every_code_has_one_kind_of_error(code, reason, kind):
    assert type(error_for(code, reason)) is kind


def test_the_message_names_method_object_code_and_the_servers_words():
    error = error_for(409, "Conflict", "the object has been modified")

    expected = "PATCH /api/v1/namespaces/default/pods/web: 409 Conflict: the object has been modified"
    assert str(error) == expected


def test_causes_of_a_rejection_are_kept():
    error = error_for(
        422, "Invalid", causes=[{"reason": "FieldValueRequired", "field": "spec.x", "message": "required"}]
    )

    assert error.has_cause("FieldValueRequired")
    assert str(error.causes[0]) == "spec.x: required"


@pytest.mark.parametrize(
    ("headers", "details", "seconds"),
    [
        pytest.param({"retry-after": "7"}, {}, 7.0, id="seconds"),
        pytest.param({"retry-after": "Thu, 01 Jan 1970 00:17:00 GMT"}, {}, 20.0, id="date"),
        pytest.param({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, {}, 0.0, id="date in the past"),
        pytest.param({}, {"retryAfterSeconds": 3}, 3.0, id="in the status"),
        pytest.param({"retry-after": "soon"}, {}, None, id="nonsense"),
        pytest.param({}, {}, None, id="absent"),
    ],
)
def test_retry_after_is_read_from_header_or_status(headers, details, seconds):
    assert error_for(429, headers=headers, **details).retry_after == seconds


def test_a_body_that_is_no_status_is_quoted_short_and_on_one_line():
    error = errors.from_response(
        REQUEST, HttpResponse(502, {}, b"<html>\n<b>bad gateway</b>" + b"x" * 10_000), now=0.0
    )

    assert "bad gateway" in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 400


@given(st.binary(max_size=300), st.integers(300, 599))
def test_any_body_gives_a_printable_error(body, code):
    error = errors.from_response(REQUEST, HttpResponse(code, {}, body), now=0.0)

    assert error.code == code
    assert str(error).isprintable()
