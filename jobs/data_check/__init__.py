"""`tango data check`: annotations and video files of a benchmark, before a job needs them."""
