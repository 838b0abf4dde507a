"""The batch pipeline: decode on CPUs, encode and prune on actors, cache, answer on other actors."""
