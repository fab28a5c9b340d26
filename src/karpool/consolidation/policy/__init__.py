"""Decides which nodes may be removed, at what price and within which budgets, and scores moves.
Start with `eligibility`, then `scoring`.
"""
