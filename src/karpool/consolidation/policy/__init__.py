"""Who may go, at what price, within which budgets, and how a move is scored.
Start with `eligibility`, then `scoring`.
"""
