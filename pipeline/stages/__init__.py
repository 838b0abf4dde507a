"""The three stages; plain functions and classes that know nothing of Ray."""
