"""The Common Expression Language as Kubernetes uses it: CRD validation rules and device selectors.

`syntax` parses text into a tree, `types` has the static types, `values`, `functions` and `macros` are the
library, and `program` checks and compiles a tree into closures that count their cost. Start at
`program.compile_program`.
"""
