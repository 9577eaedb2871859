"""Delivery policy: GuardConfig, its layers, and how they merge."""
