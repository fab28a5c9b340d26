"""From templates and policies to bindings, works and objects in members. Start with `detector`."""
