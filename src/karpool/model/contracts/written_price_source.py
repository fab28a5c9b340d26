"""The price source in a contract: checked, and without secrets in errors."""

import re

from karpool.model.contracts.learnt_prices import NODE_COST, PriceSource
from karpool.model.errors import Invalid
from karpool.model.kubernetes.meta import Wire
from karpool.model.web_address import is_http_url

_ANNOTATION = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_URL_SECRET = re.compile(r"//[^/]*@")
_QUERY_MAX = 2000


class WrittenPriceSource(Wire, frozen=True, forbid_unknown_fields=True):
    annotation: str = ""
    prometheus: str = ""
    query: str = NODE_COST
    bearer_token_file: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    insecure_skip_verify: bool = False


def price_source(written: WrittenPriceSource) -> PriceSource:
    if written.annotation and not _ANNOTATION.fullmatch(written.annotation):
        reason = "must be the key of an annotation of nodes, like example.com/price"
        raise Invalid("pricesFrom.annotation", written.annotation, reason)
    if written.prometheus and not is_http_url(written.prometheus):
        reason = (
            "must be an address without a password, like http://prometheus.monitoring.svc:9090; the password"
            " goes into a file, `passwordFile` or `bearerTokenFile`"
        )
        # The part before an @ may be a password.
        raise Invalid("pricesFrom.prometheus", _URL_SECRET.sub("//...@", written.prometheus)[:200], reason)
    _check_credentials(written)
    if not 0 < len(written.query) <= _QUERY_MAX:
        raise Invalid(
            "pricesFrom.query", written.query[:100], f"must be a query of at most {_QUERY_MAX} characters"
        )
    return PriceSource(
        written.annotation,
        written.prometheus,
        written.query,
        written.bearer_token_file,
        written.username,
        written.password_file,
        written.ca_file,
        written.insecure_skip_verify,
    )


def _check_credentials(written: WrittenPriceSource) -> None:
    """Check that credentials are complete, and that TLS options are for a TLS address."""
    fields = {
        "bearerTokenFile": written.bearer_token_file,
        "username": written.username,
        "passwordFile": written.password_file,
        "caFile": written.ca_file,
        "insecureSkipVerify": written.insecure_skip_verify,
    }
    for name, value in fields.items():
        if value and not written.prometheus:
            raise Invalid(f"pricesFrom.{name}", value, "is for Prometheus: name it with `prometheus`")
        if name in ("caFile", "insecureSkipVerify") and value and not written.prometheus.startswith("https:"):
            raise Invalid(f"pricesFrom.{name}", value, "is for an https address of Prometheus")
        if isinstance(value, str) and (len(value) > _QUERY_MAX or not value.isprintable()):
            raise Invalid(f"pricesFrom.{name}", value[:100], "must be one line of text")
    if bool(written.username) != bool(written.password_file):
        name = "passwordFile" if written.username else "username"
        raise Invalid(f"pricesFrom.{name}", "", "`username` and `passwordFile` go together")
    if ":" in written.username:
        raise Invalid("pricesFrom.username", written.username, "must not contain a colon")
    if written.bearer_token_file and written.username:
        raise Invalid("pricesFrom.bearerTokenFile", written.bearer_token_file, "or `username`, not both")
    if written.ca_file and written.insecure_skip_verify:
        raise Invalid("pricesFrom.insecureSkipVerify", True, "would make `caFile` mean nothing")
