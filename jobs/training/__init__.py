"""Train the embedded model: vision tower, then decoder on drawn tokens, then both together."""
