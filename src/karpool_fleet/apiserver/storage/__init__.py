"""Objects at rest: the store, its history for watches, and the journal that makes it durable."""
