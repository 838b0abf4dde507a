"""Shapes, the embedded world: drawn, rendered and asked about without a download."""
