"""Transport over an LMDB database: one key per message."""
