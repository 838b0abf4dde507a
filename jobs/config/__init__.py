"""Recipes: the schema of the YAML file, `--set` overrides, and methods with lists of values.

`overrides.py` reads YAML and recipe files, applies `--set`, and selects the part that determines
the answers; `recipe.py` and `sections.py` check the result, expand lists of values and add
controls. A new recipe key goes into a section of `sections.py`; a path has the type `Place`.
"""
