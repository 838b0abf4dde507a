"""Real processes that are killed, starved and made to wait at random moments; see `__main__`."""
