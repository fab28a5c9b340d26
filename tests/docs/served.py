"""What commands of the pages ask over the network: programs as people start them, on ports of their own."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

WAIT_SECONDS = 30


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


_QUIET = ("--v=2", "--metrics-bind-address=0", "--health-probe-bind-address=0")


class Served:
    """Started when first asked for, and found by the port that pages call it by."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: list[subprocess.Popen[str]] = []
        self._ports: dict[str, int] = {}

    def stop(self) -> None:
        for each in self._running:
            each.kill()
            each.communicate()

    def address(self, shown: str) -> str:
        """Of `localhost:8088`, the dashboard, or `localhost:10352`, an estimator."""
        if shown not in self._ports:
            port = _free_port()
            if shown == "localhost:8088":
                self._start("dashboard", "--cluster=east", f"--port={port}", ready="open http")
                _wait_until_read(f"http://127.0.0.1:{port}/readyz")
            else:
                assert shown == "localhost:10352", shown
                self._start("estimator", "--cluster-name=member1", f"--server-port={port}", *_QUIET)
            self._ports[shown] = port
        return f"127.0.0.1:{self._ports[shown]}"

    def _start(self, *arguments: str, ready: str = "cluster counted") -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "karpool.cli.main", *arguments],
            cwd=self._folder,
            env={**os.environ, "KUBECONFIG": str(self._folder / "config")},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._running.append(process)
        assert process.stderr is not None
        said: list[str] = []
        for line in process.stderr:
            said.append(line)
            if ready in line:
                return
        raise AssertionError("".join(said))


def _wait_until_read(url: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            urllib.request.urlopen(url, timeout=WAIT_SECONDS).close()
            return
        except urllib.error.HTTPError as error:
            assert time.monotonic() < end, error.read()
            time.sleep(0.05)


def grpcurl(address: str, name: str, request: str) -> str:
    """As the program does it: the types are asked of the server, and JSON becomes bytes by them."""
    service, _, method = name.partition("/")
    with grpc.insecure_channel(address) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))  # type: ignore[no-untyped-call]
        found = pool.FindServiceByName(service).FindMethodByName(method)
        make: Any = message_factory.GetMessageClass(found.input_type)
        read: Any = message_factory.GetMessageClass(found.output_type)
        call = channel.unary_unary(
            f"/{name}", request_serializer=make.SerializeToString, response_deserializer=read.FromString
        )
        answer = call(json_format.Parse(request, make()), timeout=WAIT_SECONDS, wait_for_ready=True)
    return json_format.MessageToJson(answer)
