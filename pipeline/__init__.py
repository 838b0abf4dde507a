"""The batch pipeline: decode on CPUs, encode and prune on GPU actors, cache, answer on other actors."""
