"""How much cheaper a cluster could be at all: a bound that no plan beats, and the certificate it gives.
Start with `certificate`.
"""
