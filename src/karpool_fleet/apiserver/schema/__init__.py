"""Structural schemas: read, compiled into closures and applied to objects; formats and CEL rules."""
