"""The JSON API: its structs, endpoints, OpenAPI document and cache. Start with `views`."""
