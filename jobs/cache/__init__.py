"""What `tango cache ...` prints; the work is done in `pipeline.cache`."""
