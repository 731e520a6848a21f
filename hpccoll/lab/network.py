"""Links between nodes: pairs of virtual Ethernet, a bridge or the delaying switch, and token buckets for their rates.

Node i holds `eth0`; the other end, `v<i>`, is on the control node. Each end has a bucket for what it sends, so a rate
holds in both directions.
"""

from __future__ import annotations

import subprocess

from hpccoll.errors import UnavailableError

BRIDGE, CONTROL_END = "br0", "vctl"
# Jumbo frames, as clusters have: headers take 0.7 % of a link instead of 4.4 %, and a frame costs this machine less.
MTU = 9000
# A bucket that is emptied before the kernel's next tick wastes the time between: measured, 50,000 B at 400 Mbit/s cost
# several percent of the rate, 131,072 B none. It must also hold the largest frame that TCP hands down, 64 KiB.
LEAST_BURST_BYTES, BURST_SECONDS = 131_072, 0.003
# The queue takes whole windows of several senders: a drop would halve TCP's rate, which says nothing of the algorithm.
LEAST_QUEUE_BYTES, QUEUE_SECONDS = 4 << 20, 0.5


def burst_bytes(bytes_per_s: float) -> int:
    """Return how much a link of that rate may send at once."""
    return max(LEAST_BURST_BYTES, round(bytes_per_s * BURST_SECONDS))


def queue_bytes(bytes_per_s: float) -> int:
    """Return how much may wait for a link of that rate."""
    return max(LEAST_QUEUE_BYTES, round(bytes_per_s * QUEUE_SECONDS)) + burst_bytes(bytes_per_s)


def shape_words(device: str, bytes_per_s: float | None) -> list[str]:
    """Return the `tc` command that gives a device a rate, or takes it away for None."""
    if bytes_per_s is None:
        return ["tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "10000"]
    bucket = ["rate", f"{round(bytes_per_s * 8)}bit", "burst", str(burst_bytes(bytes_per_s))]
    return ["tc", "qdisc", "replace", "dev", device, "root", "tbf", *bucket, "limit", str(queue_bytes(bytes_per_s))]


def control_batch(address: str, switched: bool) -> str:
    """Return the `ip -batch` commands that prepare the control node.

    Args:
        address: the control node's.
        switched: whether the delaying switch joins the links, and not a bridge.
    """
    if not switched:
        return (
            f"link set lo up\nlink add {BRIDGE} mtu {MTU} type bridge\n"
            f"addr add {address}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
        )
    return (
        f"link set lo up\nlink add {CONTROL_END} mtu {MTU} type veth peer name ctl0 mtu {MTU}\n"
        f"addr add {address}/24 dev ctl0\nlink set ctl0 up\nlink set {CONTROL_END} up\n"
    )


def link_batch(end: str, pid: int, switched: bool) -> str:
    """Return the `ip -batch` commands that give the network namespace of process `pid` a link that ends in `end`."""
    master = "" if switched else f"link set {end} master {BRIDGE}\n"
    return f"link add {end} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {pid}\n{master}link set {end} up\n"


def node_batch(address: str) -> str:
    """Return the `ip -batch` commands that a node runs on its own side of the link."""
    return f"link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n"


def call(words: list[str], given: str = "", *, check: bool = True) -> None:
    """Run a network command.

    Raises:
        UnavailableError: it failed; the message holds its words and what it said.
    """
    done = subprocess.run(words, input=given, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(
            f"`{' '.join(words)}` ended with {done.returncode}: {said[-1] if said else 'without a word'}; "
            "the kernel may lack bridge, veth or tbf: `hpccoll lab up --flat` needs none of them"
        )


def in_network_of(pid: int, words: list[str]) -> list[str]:
    """Return the command that runs `words` in the network namespace of process `pid`."""
    return ["nsenter", "--net", "--target", str(pid), *words]
