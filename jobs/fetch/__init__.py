"""`tango data get` and `tango model get`: files of the Hugging Face hub, before a job needs them.

Reading order::

    hub       a repository: its commit, files and access; downloads resumed from their last byte,
              and the record of what is here (`.tango-get` below the root)
    unpack    zip and tar, whole or in pieces, resumed after any member
    data      `tango data get`: the plan that is shown first, then download, unpack, check
    model     `tango model get`

`huggingface_hub` lists, transfers, retries, shows progress and lays out its cache. Its downloads
start again in another process, so partial files are kept and checked here. Imports
`jobs.data_check`, `jobs.run`, `pipeline` and `tango_core`. What a benchmark publishes where is
stated by its class (`Benchmark.releases`).
"""
