"""Recipes: the schema of the YAML file, `--set` overrides, and methods with lists of values.

`bounded_yaml.py` reads YAML of any origin, `overrides.py` reads the file and applies `--set`,
`recipe.py` and `sections.py` check the result, and the model's family its options, `methods.py`
expands lists of values and adds controls, `identity.py` says what of a recipe decides results,
`errors.py` writes what is wrong in one line. A new recipe key goes into a section of `sections.py`;
if it is a path, its type is `Place`.
"""
