"""Machines for rent at vast.ai: its REST API, its offers, and the life of one rented machine."""
