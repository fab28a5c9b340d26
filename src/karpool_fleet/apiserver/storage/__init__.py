"""Storage: the object store, its history for watches, and the journal on disk."""
