"""Communication calls from other tools, and to them.

- `calls`: what their formats have in common: names of operations and data types, bytes, program order
- `kineto`, `param`, `chakra`: a module for each format that is read; Chakra's is written, too
- `traces`: files of all ranks, read and written
"""
