"""From members back: the status of works, bindings, templates and clusters."""
