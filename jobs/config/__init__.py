"""Recipes: what a YAML file may say, `--set` overrides, and lists of methods spelled out.

Imports `pipeline` and `tango_core` only for the types of settings. A new recipe key goes into
`recipe.py`.
"""
