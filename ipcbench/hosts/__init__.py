"""More than one host: which ones, the agent on each, channels between them; and emulated ones.

- `inventory`: which hosts take part, and which endpoint runs on which
- `link`, `agent`, `remote`: the coordinator's process on each host, and what it and the coordinator say to each other
- `published`: what is said of hosts, without their names
- `mirror`: a channel's folder on several hosts
- `simulated/`: hosts that are namespaces of this machine
"""
