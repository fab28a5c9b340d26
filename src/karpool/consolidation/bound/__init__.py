"""Computes an upper bound on the savings of any plan, and the certificate that states it.
Start with `certificate`.
"""
