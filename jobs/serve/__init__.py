"""`tango serve`: answer an HTTP client's questions about clips of a token cache, with vLLM."""
