"""Known faults, brought back one at a time, to prove that the tests find such faults."""
