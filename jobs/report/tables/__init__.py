"""Tables as text, Markdown, CSV and LaTeX: one module per kind of table.

`files.py` writes them all; a new kind is a module here and a line there.
"""
