# ruff: noqa
# fmt: off
# mypy: disable-error-code="type-arg"
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AwaitRoomRequest(_message.Message):
    __slots__ = ("cluster", "seen")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    seen: int
    def __init__(self, cluster: _Optional[str] = ..., seen: _Optional[int] = ...) -> None: ...

class AwaitRoomResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...
