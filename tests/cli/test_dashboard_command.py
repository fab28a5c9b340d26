"""`karpool dashboard` serves every cluster it is told of until it is told to stop, and says what is wrong."""

import asyncio
import os
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from karpool.cli.main import run
from karpool.dashboard.options import DashboardOptions
from karpool.dashboard.process import cluster_configs
from karpool.dashboard.server.certificate import ReloadingCertificate
from karpool.kube.clock import RealClock
from karpool.kube.config import kubeconfig
from karpool_fleet.apiserver.serve.http import serve
from karpool_fleet.apiserver.serve.kubeconfig_file import EmbeddedClusterEntry, write_kubeconfig
from karpool_fleet.clusters.embedded import EmbeddedCluster
from tests.kube.pki import Authority, Pair


def saved(path: Path, *names: str) -> str:
    """A kubeconfig of clusters that do not answer."""
    write_kubeconfig(path, [EmbeddedClusterEntry(name, "http://127.0.0.1:9", "", b"") for name in names])
    return str(path)


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The command as people start it, and the address it says."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "karpool.cli.main", "dashboard", *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    said = []
    try:
        async for line in process.stderr:
            said.append(line.decode())
            if ": open http" in said[-1]:
                yield process, said[-1].split()[-1]
                return
        raise AssertionError("".join(said))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.long
async def test_every_context_is_shown_until_it_is_told_to_stop(tmp_path: Path) -> None:
    async with (
        EmbeddedCluster("east", clock=RealClock()) as east,
        EmbeddedCluster("w", clock=RealClock()) as west,
    ):
        listening = [await serve(each.server) for each in (east, west)]
        entries = [
            EmbeddedClusterEntry(name, each.url, "", b"")
            for name, each in zip(("east", "west"), listening, strict=True)
        ]
        write_kubeconfig(tmp_path / "fleet.yaml", entries)
        arguments = ("--kubeconfig", str(tmp_path / "fleet.yaml"), "--port", "0", "--all-contexts")
        async with started(*arguments) as (process, url), aiohttp.ClientSession() as session:
            fleet = await (await session.get(f"{url}api/v1/fleet")).json()
            page = await session.get(url)
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
        for each in listening:
            await each.close()

    assert [each["name"] for each in fleet["clusters"]] == ["east", "west"]
    assert "trusted-types 'none'" in page.headers["Content-Security-Policy"]
    assert code == 0


@pytest.mark.long
async def test_elsewhere_than_on_loopback_it_speaks_tls_and_asks_for_its_token(
    tmp_path: Path,
) -> None:
    authority = Authority()
    issued = authority.issue("dashboard", hosts=["localhost", "127.0.0.1"])
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    files = ("--tls-cert-file", str(certificate), "--tls-private-key-file", str(key))
    trusting = ssl.create_default_context(cadata=authority.pem.decode())
    config = saved(tmp_path / "fleet.yaml", "east")
    async with started("--kubeconfig", config, "--host", "0.0.0.0", "--port", "0", *files) as (process, link):
        url, _, token = link.partition("#token=")
        here = url.replace("0.0.0.0", "127.0.0.1")
        async with aiohttp.ClientSession() as session:

            async def asked(path: str, **headers: str) -> int:
                async with session.get(here + path, ssl=trusting, headers=headers) as response:
                    return response.status

            right = f"Bearer {token}"
            found = [await asked(path) for path in ("", "livez", "api/v1/fleet", "metrics")]
            opened = [await asked(path, Authorization=right) for path in ("api/v1/fleet", "metrics")]
            with pytest.raises(aiohttp.ClientError):
                await session.get(here.replace("https:", "http:"))
        process.send_signal(signal.SIGTERM)
        code = await process.wait()

    assert url.startswith("https://0.0.0.0:") and len(token) >= 32
    assert found == [200, 200, 401, 401]
    assert opened == [200, 200]
    assert code == 0


def test_a_port_that_is_taken_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        code = run(["dashboard", "--kubeconfig", saved(tmp_path / "k", "east"), "--port", port], "karpool")

    assert code == 1
    said = capsys.readouterr().err
    assert f"127.0.0.1:{port}" in said and "choose another --port" in said


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(["--host", "0.0.0.0"], 2, "--insecure-http behind a proxy", id="outside without TLS"),
        pytest.param(["--tls-cert-file", os.devnull], 2, "must be used together", id="half a certificate"),
        pytest.param(
            ["--tls-cert-file", __file__, "--tls-private-key-file", __file__],
            1,
            "cannot be used",
            id="no PEM",
        ),
        pytest.param(["--cluster", "east", "--all-contexts"], 2, "cannot be combined", id="both"),
        pytest.param(["--cluster", "nobody"], 1, '"nobody"', id="no such context"),
        pytest.param(["--cluster", "a=east", "--cluster", "a=west"], 2, "called a", id="one name twice"),
        pytest.param(
            ["--host", "nowhere.invalid", "--insecure-http"], 1, "give --host an address", id="no such host"
        ),
        pytest.param(["--token-file", __file__ + ".none"], 2, "does not exist", id="no token file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_served(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = saved(tmp_path / "kubeconfig", "east", "west")

    assert run(["dashboard", "--kubeconfig", config, "--port", "0", *arguments], "karpool") == code
    assert says in capsys.readouterr().err


def test_a_short_token_is_refused_and_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    config = saved(tmp_path / "kubeconfig", "east")
    options = ["--kubeconfig", config, "--port", "0", "--token-file", str(tmp_path / "token")]

    assert run(["dashboard", *options], "karpool") == 1
    said = capsys.readouterr().err
    assert "at least 16" in said and "hunter2" not in said


@pytest.mark.long
async def test_a_token_of_a_file_is_asked_for_and_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("correct horse battery\n")
    config = saved(tmp_path / "kubeconfig", "east")
    options = ("--kubeconfig", config, "--port", "0", "--token-file", str(tmp_path / "token"))
    async with started(*options) as (_, url), aiohttp.ClientSession() as session:
        assert "#" not in url and "horse" not in url
        assert (await session.get(f"{url}api/v1/fleet")).status == 401
        headers = {"Authorization": "Bearer correct horse battery"}
        assert (await session.get(f"{url}api/v1/fleet", headers=headers)).status == 200


def shown_to(certificate: ReloadingCertificate, authority: Authority) -> bytes:
    """What a browser that trusts the authority is shown now."""
    trust = ssl.create_default_context(cadata=authority.pem.decode())
    incoming, outgoing, back, forth = (ssl.MemoryBIO() for _ in range(4))
    client = trust.wrap_bio(incoming, outgoing, server_hostname="localhost")
    server = certificate.context.wrap_bio(back, forth, server_side=True)
    for side in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
        back.write(outgoing.read())
        incoming.write(forth.read())
    found = client.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_renewed_certificate_is_used_and_half_of_one_is_not(tmp_path: Path) -> None:
    authority = Authority()
    files = tmp_path / "tls.crt", tmp_path / "tls.key"

    def write(pair: Pair) -> None:
        for path, content in zip(files, (pair.certificate, pair.key), strict=True):
            path.write_bytes(content)

    write(authority.issue("old", hosts=["localhost"]))
    certificate = ReloadingCertificate(*files)
    before = shown_to(certificate, authority)
    renewed = authority.issue("new", hosts=["localhost"])
    files[0].write_bytes(renewed.certificate)  # its key has not come yet
    certificate.renew()
    assert shown_to(certificate, authority) == before
    write(renewed)
    certificate.renew()
    assert shown_to(certificate, authority) != before


def test_in_a_pod_the_cluster_may_be_given_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("x")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(kubeconfig, "load", partial(kubeconfig.load, service_account=tmp_path))
    assert [config.name for config in cluster_configs(DashboardOptions(clusters=("east=",)))] == ["east"]
    assert [config.name for config in cluster_configs(DashboardOptions())] == ["in-cluster"]
