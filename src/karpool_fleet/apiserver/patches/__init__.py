"""Patches of every type, server-side apply and managed fields, as functions of objects."""
