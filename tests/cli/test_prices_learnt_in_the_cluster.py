"""`pricesFrom` in the contract: what Prometheus or annotations say is the price of every command."""

import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml

from karpool.cli.main import run
from tests.consolidation.cluster_objects import flat, node, pod, pool
from tests.kube.pki import Authority

NODES = (pool(types=("m5.large",)), node("a"), node("b"), pod("a-1", "a"), pod("b-1", "b"))


@pytest.fixture
def prometheus():
    """Answers with `body` as it is at that moment."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked_by = self.headers.get("Authorization")
            if self.server.admits not in (None, self.server.asked_by):
                self.send_error(401)
                return
            self.send_response(self.server.status)
            if self.server.status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(self.server.body)

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.body, server.admits, server.asked_by = 200, b"", None, None
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def costs(**prices):
    result = [
        {"metric": {"node": name, "provider_id": f"kwok://{name}"}, "value": [time.time(), str(price)]}
        for name, price in prices.items()
    ]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.fixture
def answer(tmp_path, capsys):
    def command(source, *words, objects=NODES, expect=0, **more):
        cluster, file = tmp_path / "prod.yaml", tmp_path / "contract.yaml"
        cluster.write_text(yaml.safe_dump_all(flat(*objects)))
        file.write_text(yaml.safe_dump({"format": "karpool-contract/1", "pricesFrom": source, **more}))
        code = run([*words, "--snapshot", str(cluster), "--contract", str(file)], "karpool")
        shown = capsys.readouterr()
        assert code == expect, shown.err
        return shown.err if expect else shown.out

    return command


def test_top_plan_and_capacity_have_the_price_that_prometheus_says(answer, prometheus, tmp_path):
    prometheus.body = costs(a=0.05, b=0.05)
    source = {"prometheus": prometheus.url}
    file = tmp_path / "web.yaml"
    container = {"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}
    metadata = {"name": "web", "namespace": "team"}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    file.write_text(yaml.safe_dump(document))

    top = json.loads(answer(source, "top", "-o", "json"))
    plan = json.loads(answer(source, "plan", "-o", "json"))
    words = ("capacity", "-f", str(file), "--replicas", "4", "-o", "json")
    capacity = json.loads(answer(source, *words))

    assert [(item["price_per_hour"], item["list_price_per_hour"]) for item in top["items"]] == [
        (0.05, 0.096)
    ] * 2
    assert plan["before"]["price_per_hour"] == pytest.approx(0.1)
    assert plan["moves"][0]["savings_per_hour"] == pytest.approx(0.05)
    assert capacity["price_per_hour"] == pytest.approx(0.05 * capacity["new_nodes"])
    assert capacity["list_price_per_hour"] == pytest.approx(0.096 * capacity["new_nodes"])


def test_a_learnt_price_is_not_discounted_again(answer, prometheus):
    prometheus.body = costs(a=0.05, b=0.05)
    discounts = [{"name": "d", "percent": 50}]

    top = json.loads(answer({"prometheus": prometheus.url}, "top", "-o", "json", discounts=discounts))

    assert [item["price_per_hour"] for item in top["items"]] == [0.05, 0.05]


def test_commitments_are_drawn_from_at_a_learnt_price(answer, prometheus):
    prometheus.body = costs(a=0.05, b=0.05)
    plan = {"name": "plan", "kind": "savings-plan", "perHour": 0.05, "percent": 50}

    top = json.loads(answer({"prometheus": prometheus.url}, "top", "-o", "json", commitments=[plan]))

    assert top["bill"]["uses"] == [{"name": "plan", "used": 0.05, "amount": 0.05, "unit": "dollars"}]


def test_an_overlay_counts_before_what_was_learnt(answer, prometheus):
    prometheus.body = costs(a=0.05, b=0.05)
    overlay = {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "ours"},
        "spec": {
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["m5.large"]}
            ],
            "price": "0.04",
        },
    }

    source = {"prometheus": prometheus.url}
    top = json.loads(answer(source, "top", "-o", "json", objects=(*NODES, overlay)))

    assert [item["price_per_hour"] for item in top["items"]] == [0.04, 0.04]


def test_a_type_that_no_list_has_is_priced(answer, prometheus):
    prometheus.body = costs(a=0.5, b=0.5)
    text = yaml.safe_dump_all(flat(*NODES)).replace("m5.large", "own.large").replace("us-east-1", "basement")
    objects = list(yaml.safe_load_all(text))

    with_prices = answer({"prometheus": prometheus.url}, "top", objects=objects)
    without = answer({"annotation": "example.com/price"}, "top", objects=objects)

    assert with_prices.count("0.500") >= 2
    assert "own.large" in without
    assert "bill $1.000 per hour" in with_prices


def test_annotations_of_nodes_are_read_where_the_contract_says_so(answer):
    annotated = tuple(node(name, annotations={"example.com/price": "0.06"}) for name in "ab")
    objects = (NODES[0], *annotated, *NODES[3:])

    named = json.loads(answer({"annotation": "example.com/price"}, "top", "-o", "json", objects=objects))
    other = json.loads(answer({"annotation": "example.com/cost"}, "top", "-o", "json", objects=objects))

    assert [item["price_per_hour"] for item in named["items"]] == [0.06, 0.06]
    assert [item["price_per_hour"] for item in other["items"]] == [0.096, 0.096]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, costs(a="NaN", b=0.05), "must be USD per hour"),
        (200, costs(a=15, b=15), "another currency, or per month?"),
        (200, b"{", "is no answer of Prometheus"),
        (400, b'{"status": "error", "error": "parse error at 3"}', "parse error at 3"),
        (503, b"", "HTTP Error 503"),
        (302, b"", "HTTP Error 302"),
    ],
)
def test_a_hostile_answer_is_said_and_the_list_counts(answer, prometheus, status, body, said):
    prometheus.status, prometheus.body = status, body

    out = answer({"prometheus": prometheus.url}, "top")

    assert "0.096" in out
    assert said in out
    assert "the list counts" in out


def test_nobody_there_is_said(answer):
    out = answer({"prometheus": "http://127.0.0.1:1"}, "top")

    assert "Connection refused" in out
    assert "0.096" in out


@pytest.mark.parametrize(
    ("source", "field"),
    [
        ({"prometheus": "file:///etc/passwd"}, "pricesFrom.prometheus"),
        ({"prometheus": "http://me:secret@prometheus"}, "pricesFrom.prometheus"),
        ({"prometheus": "http://prometheus/?a=b"}, "pricesFrom.prometheus"),
        ({"prometheus": "http://p", "query": ""}, "pricesFrom.query"),
        ({"annotation": "a b"}, "pricesFrom.annotation"),
        ({"promtheus": "http://p"}, "pricesFrom"),
        ({"annotation": "a", "bearerTokenFile": "token"}, "pricesFrom.bearerTokenFile"),
        ({"prometheus": "http://p", "username": "me"}, "pricesFrom.passwordFile"),
        ({"prometheus": "http://p", "passwordFile": "secret"}, "pricesFrom.username"),
        ({"prometheus": "http://p", "username": "a:b", "passwordFile": "f"}, "pricesFrom.username"),
        (
            {"prometheus": "http://p", "username": "a", "passwordFile": "f", "bearerTokenFile": "t"},
            "pricesFrom.bearerTokenFile",
        ),
        ({"prometheus": "http://p", "caFile": "ca.crt"}, "pricesFrom.caFile"),
        ({"prometheus": "http://p", "insecureSkipVerify": True}, "pricesFrom.insecureSkipVerify"),
        (
            {"prometheus": "https://p", "insecureSkipVerify": True, "caFile": "ca.crt"},
            "pricesFrom.insecureSkipVerify",
        ),
        ({"prometheus": "http://p", "bearerToken": "secret"}, "pricesFrom"),
    ],
)
def test_a_source_that_cannot_be_is_named_with_its_line(answer, source, field):
    err = answer(source, "top", expect=1)

    assert "line " in err
    assert field in err


def test_a_password_in_an_address_is_not_shown(answer):
    err = answer({"prometheus": "http://me:hunter2@prometheus"}, "top", expect=1)

    assert "hunter2" not in err
    assert "passwordFile" in err


@pytest.mark.parametrize(
    ("source", "secret", "admits"),
    [
        ({"bearerTokenFile": "secret"}, b"abc.def\n", "Bearer abc.def"),
        ({"username": "me", "passwordFile": "secret"}, b"open sesame\n", "Basic bWU6b3BlbiBzZXNhbWU="),
    ],
)
def test_prometheus_is_told_who_asks(answer, prometheus, tmp_path, source, secret, admits):
    """The files stand beside the contract."""
    prometheus.body, prometheus.admits = costs(a=0.05, b=0.05), admits
    source = {"prometheus": prometheus.url, **source}
    (tmp_path / "secret").write_bytes(secret)

    top = json.loads(answer(source, "top", "-o", "json"))
    (tmp_path / "secret").write_bytes(b"wrong")
    refused = answer(source, "top")

    assert [item["price_per_hour"] for item in top["items"]] == [0.05, 0.05]
    assert "it requires authentication" in refused
    assert "wrong" not in refused
    assert "0.096" in refused


@pytest.mark.parametrize("secret", [None, b"", b"two\nlines", b"\xff", "tökën".encode()])
def test_a_token_that_cannot_be_used_is_said_without_it_and_nothing_is_sent(
    answer, prometheus, tmp_path, secret
):
    prometheus.body = costs(a=0.05, b=0.05)
    if secret is not None:
        (tmp_path / "secret").write_bytes(secret)

    out = answer({"prometheus": prometheus.url, "bearerTokenFile": "secret"}, "top")

    assert "pricesFrom.bearerTokenFile" in out
    assert "lines" not in out
    assert "0.096" in out
    assert prometheus.asked_by is None


@pytest.mark.long
@pytest.mark.parametrize(
    ("trust", "is_believed"),
    [({"caFile": "ca.crt"}, True), ({"insecureSkipVerify": True}, True), ({}, False)],
)
def test_prometheus_over_tls_is_believed_if_its_authority_is(
    answer, prometheus, tmp_path, trust, is_believed
):
    authority = Authority()
    issued = authority.issue("prometheus", hosts=["127.0.0.1"])
    pair = tmp_path / "pair.pem"
    pair.write_bytes(issued.certificate + issued.key)
    (tmp_path / "ca.crt").write_bytes(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    prometheus.socket = context.wrap_socket(prometheus.socket, server_side=True)
    prometheus.body = costs(a=0.05, b=0.05)

    out = answer({"prometheus": prometheus.url.replace("http:", "https:"), **trust}, "top")

    assert ("0.050" in out) is is_believed
    assert ("CERTIFICATE_VERIFY_FAILED" in out) is not is_believed
