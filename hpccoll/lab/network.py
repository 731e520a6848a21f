"""Build the commands that set up a lab's network: veth pairs, a bridge unless links have a delay, and token buckets.

A link is a veth pair: `eth0` on node i and `v<i>` on the control node. A token bucket limits the frames that each end
of a link sends, so the limit applies to both directions.
"""

from __future__ import annotations

import subprocess

from hpccoll.errors import UnavailableError

BRIDGE, CONTROL_DEVICE = "br0", "vctl"
# Jumbo frames, which clusters often use, reduce CPU time and the share of headers in a link's bytes (4.4 % to 0.7 %).
MTU = 9000
# A token bucket of 50,000 B loses several percent of 400 Mbit/s, because it is empty before the kernel's next tick.
# A token bucket of 131,072 B loses nothing of 400 Mbit/s, and holds TCP's largest frame, 64 KiB.
MIN_BURST_BYTES, BURST_SECONDS = 131_072, 0.003
# The queue of a link has room for several senders' TCP windows, because a drop would halve TCP's rate.
MIN_QUEUE_BYTES, QUEUE_SECONDS = 4 << 20, 0.5


def compute_burst_bytes(bytes_per_s: float) -> int:
    """Return the size in bytes of the token bucket that limits a link to `bytes_per_s`."""
    return max(MIN_BURST_BYTES, round(bytes_per_s * BURST_SECONDS))


def compute_queue_bytes(bytes_per_s: float) -> int:
    """Return the size in bytes of the queue before a link of `bytes_per_s`, for the option `limit` of `tc` (tbf)."""
    return max(MIN_QUEUE_BYTES, round(bytes_per_s * QUEUE_SECONDS)) + compute_burst_bytes(bytes_per_s)


def build_rate_command(device: str, bytes_per_s: float | None) -> list[str]:
    """Return the `tc` command that limits what the network device `device` sends to a rate; None removes the limit."""
    if bytes_per_s is None:
        return ["tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "10000"]
    bucket = ["rate", f"{round(bytes_per_s * 8)}bit", "burst", str(compute_burst_bytes(bytes_per_s))]
    limit = str(compute_queue_bytes(bytes_per_s))
    return ["tc", "qdisc", "replace", "dev", device, "root", "tbf", *bucket, "limit", limit]


def build_control_batch(address: str, delayed: bool) -> str:
    """Return the input of `ip -batch` that sets up the network of a lab's control node.

    Args:
        address: the IPv4 address of the control node.
        delayed: whether links have latency; if not, a bridge is set up, else a device for the switch program.
    """
    if not delayed:
        return (
            f"link set lo up\nlink add {BRIDGE} mtu {MTU} type bridge\n"
            f"addr add {address}/24 dev {BRIDGE}\nlink set {BRIDGE} up\n"
        )
    return (
        f"link set lo up\nlink add {CONTROL_DEVICE} mtu {MTU} type veth peer name ctl0 mtu {MTU}\n"
        f"addr add {address}/24 dev ctl0\nlink set ctl0 up\nlink set {CONTROL_DEVICE} up\n"
    )


def build_link_batch(device: str, pid: int, delayed: bool) -> str:
    """Return the input of `ip -batch` that makes a node's link: `device` on the control node, `eth0` on the node.

    Args:
        device: name of the control node's end of the link.
        pid: a process in the node's network namespace.
        delayed: whether links have latency; if not, `device` is attached to the bridge.
    """
    master = "" if delayed else f"link set {device} master {BRIDGE}\n"
    return f"link add {device} mtu {MTU} type veth peer name eth0 mtu {MTU} netns {pid}\n{master}link set {device} up\n"


def build_node_batch(address: str) -> str:
    """Return the input of `ip -batch` by which a node sets up its end of the link, with its IPv4 `address`."""
    return f"link set lo up\naddr add {address}/24 dev eth0\nlink set eth0 up\n"


def run_network_command(command: list[str], stdin: str = "", *, check: bool = True) -> None:
    """Run a command such as `ip` or `tc` with the input `stdin`; if `check`, raise UnavailableError if it fails."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise UnavailableError(
            f"`{' '.join(command)}` ended with status {done.returncode}: {lines[-1] if lines else 'no output'}; "
            "if the kernel lacks bridge, veth or tbf, use `hpccoll lab up --flat`, which needs none of them"
        )
