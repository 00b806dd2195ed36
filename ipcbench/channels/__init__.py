"""Channels by name: `connect` on both sides, whoever comes first makes the channel, the last one out removes it.

- `rendezvous`: the folder where the processes of a name meet, and its locks
- `epoch`: one life of a name: its channels and the places of its processes
- `channel`: the two ends, or the many, of a channel: objects are sent and received
- `connect`: finding a place in the channel of a name, in the present epoch or a new one
- `sender`, `slices`: sending objects, and waiting so that other threads are noticed; rpc uses them, too
- `aio`: the same for asyncio
"""
