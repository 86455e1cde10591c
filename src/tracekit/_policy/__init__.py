"""Stages around a session: contracts, calls that happen once, budgets and what models cost."""
