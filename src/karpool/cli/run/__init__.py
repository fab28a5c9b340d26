"""Commands that start controllers and servers, and `apply`. Start with `consolidator`."""
