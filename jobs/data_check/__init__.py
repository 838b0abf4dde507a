"""`tango data check`: check every row and every file of a benchmark before running a job."""
