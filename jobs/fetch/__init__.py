"""`tango data get` and `tango model get`: files of the Hugging Face hub, before a job needs them.

Reading order::

    plan         what is wanted, what is here already, what it takes; the table that is shown first
    hub          the hub's two lists (a commit, its files) and one file from any byte on
    stream       one file: resumed, checked, put in its place
    downloads    many files at once
    archives     which archives there are, and where their members may go
    pieces       several files as one
    unpack       zip and tar, resumed after any member
    journal      what has been fetched and unpacked, in `.tango-get` below the root
    hub_cache    files in the layout of the hub's own cache
    progress     what a person sees
    asking       the question before the start
    data, model  the two commands

The hub's client never resumes in another process, so files are streamed here; addresses, tokens,
proxies, time-outs and error codes are the client's. Imports `jobs.data_check`, `jobs.run`,
`pipeline` and `tango_core`. What a benchmark publishes where is stated by its class
(`Benchmark.releases`).
"""
