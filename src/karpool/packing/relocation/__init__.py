"""Where the pods of removed nodes go. Start with `relocation`."""
