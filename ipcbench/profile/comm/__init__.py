"""What ranks say to each other: over any backend, recorded, matched, planned from a config alone, and replayed.

- `mesh`: a channel for each ordered pair of ranks, over any backend
- `collectives`: the collective operations, on bytes, over a mesh
- `group`: both as a process group of torch, which records its calls; so does one around gloo or NCCL
- `waits`: the calls of all ranks put together: waiting, transfer, bandwidth, stragglers, the bubble of a pipeline
- `late`: steps in which something stopped a rank, and ranks for which others wait
- `synth`: the calls of a model that nobody has run
- `replay`: calls sent again over any transport
"""
