"""The language half that all families share: layers, pruning inside them, generation, chat text."""
