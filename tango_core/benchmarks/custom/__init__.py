"""People's own videos: a folder, a CSV or JSON lines."""
