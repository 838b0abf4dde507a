"""Recipes: the schema of the YAML file, `--set` overrides, and methods with lists of values.

`overrides.py` reads the file and applies `--set`, `recipe.py` checks the result, `methods.py`
expands lists of values, `identity.py` says what of a recipe decides results, `errors.py` writes
what is wrong in one line. The room imports only types
of settings from `pipeline` and `tango_core`. A new recipe key goes into a section of `recipe.py`.
"""
