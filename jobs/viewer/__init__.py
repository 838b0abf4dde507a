"""`tango view`: questions, answers and kept tokens of runs in a browser.

Reads only run directories and caches; no model is loaded, but the embeddings of questions for
methods that read them. For other packages: `pages.deep_link` (link to a clip). Imports `config` and
`results`.
"""
