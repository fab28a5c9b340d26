import asyncio
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from karpool.kube.clock import RealClock
from karpool.kube.errors import ConfigError
from karpool_fleet.apiserver.serve import tls
from karpool_fleet.apiserver.serve.tls import ServerCertificate, in_directory, in_memory, server_context
from tests.apiserver.serving import StillClock


def parsed(certificate: ServerCertificate) -> x509.Certificate:
    return x509.load_pem_x509_certificate(certificate.server.certificate)


async def handshake(certificate: ServerCertificate, trust: ssl.SSLContext, name: str) -> str | None:
    """The TLS version that a client and a server agree on."""

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=server_context(certificate))
    port = server.sockets[0].getsockname()[1]
    async with server:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
        version: str | None = writer.get_extra_info("ssl_object").version()
        await reader.read()
        writer.close()
        await writer.wait_closed()
    return version


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
async def test_a_client_that_knows_the_authority_trusts_every_loopback_name(name: str) -> None:
    certificate = in_memory(RealClock())
    trust = ssl.create_default_context(cadata=certificate.ca_pem.decode())
    trust.verify_flags |= ssl.VERIFY_X509_STRICT

    assert await handshake(certificate, trust, name) == "TLSv1.3"


async def test_tls_1_2_is_still_spoken_and_nothing_older() -> None:
    certificate = in_memory(RealClock())
    trust = ssl.create_default_context(cadata=certificate.ca_pem.decode())
    trust.maximum_version = ssl.TLSVersion.TLSv1_2

    assert await handshake(certificate, trust, "localhost") == "TLSv1.2"
    assert server_context(certificate).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_another_name_or_another_authority_is_not_trusted() -> None:
    certificate = in_memory(RealClock(), ["cluster.example"])
    trust = ssl.create_default_context(cadata=certificate.ca_pem.decode())
    strangers = ssl.create_default_context(cadata=in_memory(RealClock()).ca_pem.decode())

    assert await handshake(certificate, trust, "cluster.example") == "TLSv1.3"
    with pytest.raises(ssl.SSLCertVerificationError, match="localhost"):
        await handshake(certificate, trust, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError):
        await handshake(certificate, strangers, "cluster.example")


def test_validity_follows_the_clock_that_is_passed_in() -> None:
    clock = StillClock()

    certificate = parsed(in_memory(clock))

    assert certificate.not_valid_before_utc.timestamp() == clock.now() - 600
    assert certificate.not_valid_after_utc.timestamp() == clock.now() + 365 * 86400


def test_a_directory_keeps_the_pair(tmp_path: Path) -> None:
    clock = StillClock()

    first = in_directory(tmp_path / "pki", clock)

    assert in_directory(tmp_path / "pki", clock) == first
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "pki").iterdir()}
    assert modes == dict.fromkeys(["ca.crt", "ca.key", "tls.crt", "tls.key"], 0o600)


@pytest.mark.parametrize(
    ("seconds", "hosts", "renewed"),
    [
        pytest.param(300 * 86400, tls.LOOPBACK, False, id="still good"),
        pytest.param(340 * 86400, tls.LOOPBACK, True, id="near its end"),
        pytest.param(-86400, tls.LOOPBACK, True, id="not yet valid"),
        pytest.param(0, ("localhost",), False, id="fewer names"),
        pytest.param(0, (*tls.LOOPBACK, "10.0.0.1"), True, id="another name"),
    ],
)
def test_the_server_certificate_is_renewed_under_the_same_authority(
    tmp_path: Path, seconds: int, hosts: tuple[str, ...], renewed: bool
) -> None:
    clock = StillClock()
    first = in_directory(tmp_path, clock)
    clock.seconds += seconds

    second = in_directory(tmp_path, clock, hosts)

    assert (second.server != first.server) is renewed
    assert (second.ca_pem == first.ca_pem) is (seconds >= 0)


def test_an_authority_at_its_end_is_replaced_with_all_it_issued(tmp_path: Path) -> None:
    clock = StillClock()
    first = in_directory(tmp_path, clock)
    clock.seconds += 3640 * 86400

    second = in_directory(tmp_path, clock)

    assert second.ca_pem != first.ca_pem
    ca = x509.load_pem_x509_certificate(second.ca_pem)
    parsed(second).verify_directly_issued_by(ca)


@pytest.mark.parametrize("name", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [b"", b"not a certificate", None])
def test_a_spoilt_or_missing_file_is_made_anew(tmp_path: Path, name: str, content: bytes | None) -> None:
    in_directory(tmp_path, StillClock())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)

    certificate = in_directory(tmp_path, StillClock())

    parsed(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(certificate.ca_pem))
    assert in_directory(tmp_path, StillClock()) == certificate


def test_a_certificate_of_another_authority_is_not_kept(tmp_path: Path) -> None:
    in_directory(tmp_path / "a", StillClock())
    in_directory(tmp_path / "b", StillClock())
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "b" / name).replace(tmp_path / "a" / name)

    certificate = in_directory(tmp_path / "a", StillClock())

    parsed(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(certificate.ca_pem))


def test_keys_do_not_show_up_in_messages() -> None:
    assert "PRIVATE" not in repr(in_memory(StillClock()))


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="use another directory"):
        in_directory(tmp_path / "file" / "pki", StillClock())
    with pytest.raises(ConfigError, match=r"host 'bücher\.example': must be an IP address or an ASCII"):
        in_memory(StillClock(), ["bücher.example"])
