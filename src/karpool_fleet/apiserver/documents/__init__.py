"""Discovery and OpenAPI documents, built from the registry."""
