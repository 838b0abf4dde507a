"""Whole jobs in one process, under a clock, stores and a scheduler that misbehave from a seed."""
