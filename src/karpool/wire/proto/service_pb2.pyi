# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from karpool.wire.proto import estimator_pb2 as _estimator_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
