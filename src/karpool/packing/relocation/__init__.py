"""Where the pods of leaving nodes go. Start with `relocation`."""
