"""Damaged files: seeded mutations that know a file's structure, and what must be true of each."""
