"""Runs client-go credential plugins that print a token or a certificate.

Protocol client.authentication.k8s.io v1 and v1beta1. The program is started directly, without a shell or a
terminal, with a time limit and bounded output. Its standard output is a secret and is never quoted.
"""

import asyncio
import base64
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from karpool.kube.bounded_input import CREDENTIAL_LIMIT, read_bounded
from karpool.kube.config.kubeconfig import ClusterConfig
from karpool.kube.config.kubeconfig_file import ExecSpec
from karpool.kube.errors import ConfigError
from karpool.model.kubernetes.times import parse_rfc3339

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
TIMEOUT_SECONDS = 60.0
OUTPUT_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ExecCredential:
    token: str = field(default="", repr=False)
    certificate: bytes = b""
    key: bytes = field(default=b"", repr=False)
    expires_at: float = float("inf")  # wall clock; without an expiry it is valid until the server refuses it


class _Status(msgspec.Struct, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _Answer(msgspec.Struct, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


async def run_plugin(
    config: ClusterConfig, *, env: Mapping[str, str] = os.environ, timeout: float = TIMEOUT_SECONDS
) -> ExecCredential:
    """Run the plugin. Raises ConfigError with the plugin, the failure and its installation hint."""
    plugin = config.user.plugin
    assert plugin is not None
    prefix = f"cluster {config.name}: exec plugin {plugin.command!r}"
    _check(plugin, prefix)
    output = await _run(config, plugin, env, timeout, prefix)
    return _read(output, plugin, prefix)


def _check(plugin: ExecSpec, prefix: str) -> None:
    if plugin.api_version not in API_VERSIONS:
        raise ConfigError(
            f"{prefix}: apiVersion {plugin.api_version!r} is not supported; use {' or '.join(API_VERSIONS)}"
        )
    if plugin.interactive_mode not in ("", "Never", "IfAvailable", "Always"):
        raise ConfigError(
            f"{prefix}: interactiveMode {plugin.interactive_mode!r} must be Never, IfAvailable or Always"
        )
    if plugin.interactive_mode == "Always":
        raise ConfigError(
            f"{prefix}: interactiveMode Always needs a terminal, and there is none; "
            "log in with the plugin first and set interactiveMode to IfAvailable"
        )


async def _run(
    config: ClusterConfig, plugin: ExecSpec, env: Mapping[str, str], timeout: float, prefix: str
) -> bytes:
    hint = f"; {plugin.install_hint.strip()[:500]}" if plugin.install_hint.strip() else ""
    try:
        process = await asyncio.create_subprocess_exec(
            _command(plugin, config.user.plugin_directory),
            *(plugin.args or ()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(config, plugin, env),
        )
    except OSError as error:
        raise ConfigError(f"{prefix}: cannot be started: {error.strerror}{hint}") from None
    except ValueError:
        raise ConfigError(f"{prefix}: command, args or env contain a null character") from None
    try:
        async with asyncio.timeout(timeout):
            output, complaint = await _communicate(process)
            code = await process.wait()
    except TimeoutError:
        raise ConfigError(f"{prefix}: no answer within {timeout:g} s; run it by hand to see why") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if len(output) > OUTPUT_LIMIT:
        raise ConfigError(f"{prefix}: printed more than {OUTPUT_LIMIT} bytes")
    if code != 0:
        said = " ".join(complaint.decode("utf-8", "replace").split())[:300]
        raise ConfigError(f"{prefix}: exit code {code}{': ' + said if said else ''}{hint}")
    return output


async def _communicate(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """Read both outputs at the same time, so that neither pipe can fill up and block the plugin."""
    assert process.stdout is not None and process.stderr is not None
    async with asyncio.TaskGroup() as group:
        output = group.create_task(_drain(process.stdout))
        complaint = group.create_task(_drain(process.stderr))
    return output.result(), complaint.result()


async def _drain(stream: asyncio.StreamReader) -> bytes:
    """Return the output up to just past the limit; read and drop the rest."""
    output = b""
    while chunk := await stream.read(64 * 1024):
        if len(output) <= OUTPUT_LIMIT:
            output += chunk
    return output


def _command(plugin: ExecSpec, directory: Path | None) -> str:
    # A bare name is looked up in PATH; anything with a slash is relative to the kubeconfig.
    if os.sep in plugin.command and directory is not None:
        return str(directory / plugin.command)
    return plugin.command


def _environment(config: ClusterConfig, plugin: ExecSpec, env: Mapping[str, str]) -> dict[str, str]:
    spec: dict[str, object] = {"interactive": False}
    if plugin.provide_cluster_info:
        spec["cluster"] = _cluster_info(config)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    added = {exec_env.name: exec_env.value for exec_env in plugin.env or ()}
    return {**env, **added, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()}


def _cluster_info(config: ClusterConfig) -> dict[str, object]:
    info: dict[str, object] = {"server": config.server}
    ca = read_bounded(config.ca.path, CREDENTIAL_LIMIT) if config.ca.path is not None else config.ca.data
    if ca:
        info["certificate-authority-data"] = base64.b64encode(ca).decode()
    if config.tls_server_name:
        info["tls-server-name"] = config.tls_server_name
    if config.insecure:
        info["insecure-skip-tls-verify"] = True
    if config.proxy_url:
        info["proxy-url"] = config.proxy_url
    if config.exec_config is not None:
        info["config"] = config.exec_config
    return info


def _read(output: bytes, plugin: ExecSpec, prefix: str) -> ExecCredential:
    try:
        answer = msgspec.json.decode(output, type=_Answer)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        raise ConfigError(f"{prefix}: did not print an ExecCredential; run it by hand to see why") from None
    if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version:
        raise ConfigError(
            f"{prefix}: answered in {answer.api_version or 'no apiVersion'}, "
            f"but the kubeconfig says {plugin.api_version}; make them the same"
        )
    status = answer.status or _Status()
    token, certificate, key = status.token, status.client_certificate_data, status.client_key_data
    if not token and not certificate:
        raise ConfigError(f"{prefix}: answered without a token or a certificate; log in again")
    if bool(certificate) != bool(key):
        raise ConfigError(f"{prefix}: answered with only one of certificate and key")
    if token and not (token.isprintable() and token.isascii()):
        raise ConfigError(f"{prefix}: answered with a token that cannot be put into a header")
    return ExecCredential(
        token or "",
        (certificate or "").encode(),
        (key or "").encode(),
        _expiry(status.expiration_timestamp, prefix),
    )


def _expiry(text: str | None, prefix: str) -> float:
    if not text:
        return float("inf")
    try:
        return parse_rfc3339(text)
    except ValueError:
        raise ConfigError(f"{prefix}: expirationTimestamp {text[:60]!r} is not a time") from None
