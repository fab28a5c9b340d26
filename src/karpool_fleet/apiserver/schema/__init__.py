"""Structural schemas: read, compiled into closures, applied to objects; patterns and rules."""
