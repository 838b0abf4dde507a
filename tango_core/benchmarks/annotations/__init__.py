"""Benchmarks that are a table of annotations beside a folder of videos: what they share."""
