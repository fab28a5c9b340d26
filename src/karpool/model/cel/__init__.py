"""The Common Expression Language as Kubernetes speaks it: CRD validation rules and device selectors.

`syntax` reads text into a tree, `types` says which types there are, `values`, `functions` and `macros` are
the library, `program` checks and compiles a tree into closures that count what they cost. Start at
`program.compile_program`.
"""
