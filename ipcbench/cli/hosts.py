"""`ipcbench hosts`: more than one host."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import click

from ipcbench.cli.options import Group
from ipcbench.cli.output import tell
from ipcbench.errors import ConfigError
from ipcbench.util.units import (
    format_bits_per_s,
    format_duration_ns,
    format_percent,
    parse_bits_per_s,
    parse_duration_s,
    parse_ratio,
)

if TYPE_CHECKING:
    from ipcbench.hosts.simulated.links import Link

_BY_SIGNAL = 128
"""To which a shell adds the number of the signal that ended a command."""
_MOST_RTT_S = 10.0
"""No host waits longer for another to accept its connection."""


@click.group("hosts", cls=Group, invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """Work with more than one host."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@command.command(
    "simulate",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="Emulate hosts, with links as slow as you plan them.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.option("--hosts", "count", default=2, show_default=True, metavar="N", help="How many: a, b, c …")
@click.option("--rtt", metavar="TIME", help="Round-trip time between any two, such as 10ms.")
@click.option("--rate", metavar="RATE", help="What each host can send, such as 1Gbit/s.")
@click.option("--loss", metavar="SHARE", help="Share of packets that are lost, such as 0.1%.")
def simulate(words: tuple[str, ...], count: int, rtt: str | None, rate: str | None, loss: str | None) -> int:
    """Run COMMAND, by default a shell, where emulated hosts a, b, c … are reached by their names.

    Each has its own network, processes, /tmp, /dev/shm and monotonic clock; files, cores and the wall clock are this
    machine's. Inside, `$IPCBENCH_RSH a COMMAND` runs a command on host a. It takes root, or a system that lets users
    make namespaces.

    The exit code is the command's; 128 and the signal's number if one killed it.
    """
    from ipcbench.hosts.simulated.cluster import simulated_hosts
    from ipcbench.hosts.simulated.links import Link

    link = Link(
        delay_s=parse_duration_s(rtt or "0", "--rtt", or_zero=True) / 2,
        bits_per_s=parse_bits_per_s(rate, "--rate") if rate else 0.0,
        loss_ratio=parse_ratio(loss, "--loss") if loss else 0.0,
    )
    if link.loss_ratio >= 1:
        raise ConfigError("--loss", loss, "a share below 100 %")
    if link.delay_s > _MOST_RTT_S / 2:
        raise ConfigError("--rtt", rtt, f"at most {_MOST_RTT_S:g} s")
    with simulated_hosts(count, link) as cluster:
        tell(f"hosts {', '.join(cluster.names)}{_words(link)}; `$IPCBENCH_RSH HOST COMMAND` runs a command on one")
        line = cluster.command(words or (os.environ.get("SHELL", "/bin/sh"),))
        inside = {**os.environ, "IPCBENCH_RSH": str(cluster.remote_shell)}
        code = subprocess.run(line, env=inside, check=False).returncode
        return code if code >= 0 else _BY_SIGNAL - code


def _words(link: Link) -> str:
    """Return what a link is like, as the end of a clause."""
    parts = [
        f"{format_duration_ns(2e9 * link.delay_s)} round trip" if link.delay_s else "",
        f"{format_bits_per_s(link.bits_per_s)} out of each" if link.bits_per_s else "",
        f"{format_percent(link.loss_ratio)} lost" if link.loss_ratio else "",
    ]
    said = ", ".join(filter(None, parts))
    return f" ({said})" if said else ""
