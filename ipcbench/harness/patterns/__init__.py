"""Queues and fan-in, measured: a side that offers messages, and a side that takes them.

- `parts`: what an endpoint does: `Offering` writes, `Taking` reads or works
- `trial`: the steps of a trial: one window flat out, then one at each share of what that carried
- `digest`: from the endpoints' answers to the record: rates, shares, times, and whether every message came once
"""
