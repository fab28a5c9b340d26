"""Discovery and OpenAPI documents, made from the registry."""
