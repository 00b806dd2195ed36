"""Where the time of a step goes, in passes of their own: times, shares of operators, work from shapes, memory.

- `blocks`: the modules that are told apart, and what is put around their forward passes
- `buckets`: what an operator is for; without torch
- `spans`: when each began and ended: the only source of times
- `operators`: the shares that operators have of each block
- `flops`: FLOPs and bytes, from shapes
- `dispatch`: every operator of a step that is not timed
- `memory`: parameters, cache, activations
- `overhead`: what the spans themselves cost; without torch
"""
