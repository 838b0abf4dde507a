"""The public benchmarks, one module each, listed in `BENCHMARKS`."""
