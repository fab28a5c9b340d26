"""Status from the members: of works, bindings, templates and clusters."""
