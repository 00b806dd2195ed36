"""Transport over an LMDB database: one key a message."""
