"""Who may call, and certificates that change while the server runs."""

import asyncio
import datetime
import ssl

import grpc
import pytest

from karpool.model.errors import Invalid
from karpool.wire.channels import ChannelPool, ClientTls
from karpool.wire.requests import ESTIMATOR
from karpool.wire.server_tls import TlsFiles, server_credentials
from tests.estimator.serving import World, asks, node, serving
from tests.kube.pki import Authority

PAST = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
OURS, OTHER = Authority("ours"), Authority("somebody else's")
SERVER = OURS.issue("estimator", hosts=["localhost", "127.0.0.1"])
CLIENT = OURS.issue("scheduler")


@pytest.fixture
async def world():
    world = World()
    await world.add(node("a"))
    return world


@pytest.fixture
def files(tmp_path):
    return write(tmp_path, SERVER, OURS)


def write(folder, pair, authority):
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    (folder / "ca.crt").write_bytes(authority.pem)
    return {
        "grpc_auth_cert_file": str(folder / "tls.crt"),
        "grpc_auth_key_file": str(folder / "tls.key"),
        "grpc_client_ca_file": str(folder / "ca.crt"),
    }


async def call(port, *, authority=OURS, client=None, plain=False):
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    target = f"localhost:{port}"
    if plain:
        channel = grpc.aio.insecure_channel(target, options=options)
    else:
        pair = (client.key, client.certificate) if client else (None, None)
        channel = grpc.aio.secure_channel(
            target, grpc.ssl_channel_credentials(authority.pem, *pair), options=options
        )
    async with channel:
        method = channel.unary_unary(f"/{ESTIMATOR}/MaxAvailableReplicas")
        return await method(asks().SerializeToString(), timeout=5)


async def refused(port, **how):
    with pytest.raises(grpc.RpcError) as error:
        await call(port, **how)
    return error.value.code()


async def test_a_client_of_our_authority_is_answered(world, files):
    async with serving(world.transport, **files) as estimator:
        assert await call(estimator.port, client=CLIENT) == bytes.fromhex("0804")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({"client": OTHER.issue("intruder")}, id="another authority"),
        pytest.param({"client": OURS.issue("late", end=PAST)}, id="expired"),
        pytest.param({}, id="no certificate"),
        pytest.param({"plain": True}, id="plaintext"),
        pytest.param({"client": CLIENT, "authority": OTHER}, id="a server that the client does not trust"),
    ],
)
async def test_everybody_else_is_not(world, files, how):
    async with serving(world.transport, **files) as estimator:
        assert await refused(estimator.port, **how) is grpc.StatusCode.UNAVAILABLE
        assert await call(estimator.port, client=CLIENT)


async def test_without_an_authority_clients_need_no_certificate(world, files):
    async with serving(world.transport, **(files | {"grpc_client_ca_file": ""})) as estimator:
        assert await call(estimator.port)
    async with serving(world.transport, insecure_skip_grpc_client_verify=True, **files) as estimator:
        assert await call(estimator.port)


async def test_without_a_key_everything_is_plaintext(world, files):
    async with serving(world.transport, **(files | {"grpc_auth_key_file": ""})) as estimator:
        assert await call(estimator.port, plain=True)


async def test_a_renewed_certificate_and_authority_are_used_at_once(world, files, tmp_path):
    async with serving(world.transport, **files) as estimator:
        assert await call(estimator.port, client=CLIENT)

        write(tmp_path, OTHER.issue("renewed", hosts=["localhost"]), OTHER)

        assert await call(estimator.port, client=OTHER.issue("scheduler"), authority=OTHER)
        assert await refused(estimator.port, client=CLIENT) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("broken", ["tls.crt", "tls.key", "ca.crt"])
async def test_a_renewal_that_cannot_be_used_changes_nothing(world, files, tmp_path, broken):
    async with serving(world.transport, **files) as estimator:
        (tmp_path / broken).write_bytes(b"half writ")
        assert await call(estimator.port, client=CLIENT)
        (tmp_path / broken).unlink()
        assert await call(estimator.port, client=CLIENT)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tls.crt", b"nothing", "contains no PEM certificate"),
        ("tls.key", b"nothing", "contains no unencrypted PEM key"),
        ("tls.key", CLIENT.key, "is not the key of"),
        ("ca.crt", b"nothing", "contains no PEM certificate"),
        ("tls.key", None, "cannot be read"),
    ],
)
def test_files_that_cannot_be_used_at_the_start_are_named(files, tmp_path, name, content, words):
    path = tmp_path / name
    path.unlink() if content is None else path.write_bytes(content)
    chosen = TlsFiles(*(tmp_path / each for each in ("tls.crt", "tls.key", "ca.crt")))

    with pytest.raises(Invalid, match=words) as error:
        server_credentials(chosen)
    assert str(path) in str(error.value)


async def test_tls_speaks_http2_as_go_clients_insist(world, files):
    async with serving(world.transport, **(files | {"grpc_client_ca_file": ""})) as estimator:
        context = ssl.create_default_context(cadata=OURS.pem.decode())
        context.set_alpn_protocols(["h2"])
        _, writer = await asyncio.open_connection("localhost", estimator.port, ssl=context)
        chosen = writer.get_extra_info("ssl_object")
        assert chosen.selected_alpn_protocol() == "h2"
        assert chosen.version() == "TLSv1.3"
        writer.transport.abort()


def test_channels_are_opened_anew_only_for_certificates_that_can_be_used(tmp_path):
    write(tmp_path, CLIENT, OURS)
    pool = ChannelPool(ClientTls(tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key"))
    first = pool.generation
    assert pool.renew() == first
    (tmp_path / "tls.key").write_bytes(b"half a key")
    assert pool.renew() == first == pool.renew()
    write(tmp_path, OURS.issue("scheduler, renewed"), OURS)
    assert pool.renew() == first + 1 == pool.renew()
