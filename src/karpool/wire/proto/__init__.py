"""Generated from the .proto files by tools/build_wire_protocol.py."""
