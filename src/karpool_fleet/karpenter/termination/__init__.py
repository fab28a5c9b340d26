"""Termination of nodes (`node_terminator`) and of claims (`claim_finalizer`)."""
