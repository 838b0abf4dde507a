"""What `tango doctor` looks at, as plain functions that each give one `Remark`.

They run in a child process (`remarks.examine`) and import what they look at when they are called:
a library that is missing, hangs or crashes costs its own line and no other.
"""
