"""Which endpoints processes really use, from the kernel alone, and how healthy an endpoint is.

- `links`: what joins two processes, with evidence and a verdict
- `verdict`: what that means, and whether a log's word for it fits
- `health`: how an endpoint is; `unix_health`: of a Unix socket, `variables`: those that name one; `look`: what these
  gather; `url`: how an endpoint is written
- `buffers`: whether a socket got the buffers that were asked for
- `sockets`, `pipes`, `memory`: the three ways to be joined; `sharing`: by what others hold, too; `relays`: by a third
  process
- `process`, `netlink`: what /proc and the kernel's list of sockets say
"""

from __future__ import annotations

from ipcbench.diagnose.endpoints.buffers import check_buffers
from ipcbench.diagnose.endpoints.health import Finding, Health, health
from ipcbench.diagnose.endpoints.link import Kind, Link, Role
from ipcbench.diagnose.endpoints.links import Links, agrees, links
from ipcbench.diagnose.endpoints.url import Endpoint, parse_endpoint
from ipcbench.diagnose.endpoints.verdict import Agreement

__all__ = [
    "Agreement",
    "Endpoint",
    "Finding",
    "Health",
    "Kind",
    "Link",
    "Links",
    "Role",
    "agrees",
    "check_buffers",
    "health",
    "links",
    "parse_endpoint",
]
