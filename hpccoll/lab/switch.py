"""Program that is an Ethernet switch with latency: it forwards each frame a fixed time after the frame's arrival.

    python -m hpccoll.lab.switch DELAY_S DEVICE...

Many machines lack netem, the kernel module that delays frames, so this program forwards frames in user space, through
raw packet sockets on the control node's ends of the links. Large TCP frames pass this program whole, and the
kernel splits them later according to their virtio-net header, so 400 Mbit/s need only a thousand frames per second.
Rates are limited by token buckets at the ends of the links, not by this program.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections import deque
from pathlib import Path

SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
ETH_P_ALL, SO_RCVBUFFORCE, SO_SNDBUFFORCE = 0x0003, 33, 32
VNET_HEADER = 10  # bytes of the virtio-net header before each frame
MAX_FRAME = 1 << 17
BUFFER_BYTES = 32 << 20  # holds the TCP windows of several senders, because a drop would halve TCP's rate
MAX_BATCH = 64  # frames from one link before the other links are served


def open_link(device: str) -> socket.socket:
    """Return a non-blocking raw socket that sends and receives the Ethernet frames of the network device `device`."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            link.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except PermissionError:  # only the initial user namespace may exceed the system's limit
            link.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)  # do not receive the frames that this program sends
    link.setblocking(False)
    link.bind((device, ETH_P_ALL))
    return link


class DelaySwitch:
    """An Ethernet switch that forwards every frame `delay_s` seconds after its arrival.

    `devices` are the network devices between which frames are forwarded: the control node's ends of the links.
    """

    def __init__(self, devices: list[str], delay_s: float) -> None:
        self.delay_s = delay_s
        self.links = [open_link(device) for device in devices]
        # The switch learns which link leads to an Ethernet address from the source addresses of frames.
        self.link_of_address: dict[bytes, socket.socket] = {}
        # Delayed frames (time to send, links, frame) are in order of time, because all frames wait equally long.
        self.delayed: deque[tuple[float, list[socket.socket], bytes]] = deque()
        self.ready: dict[socket.socket, deque[bytes]] = {link: deque() for link in self.links}

    def run(self) -> None:
        """Forward frames until this process is killed."""
        while True:
            timeout = max(0.0, self.delayed[0][0] - time.monotonic()) if self.delayed else None
            blocked = [link for link, frames in self.ready.items() if frames]
            readable, _, _ = select.select(self.links, blocked, [], timeout)
            for link in readable:
                self.receive_frames(link)
            self.send_due_frames()

    def receive_frames(self, link: socket.socket) -> None:
        """Read up to MAX_BATCH frames that arrived on a link, and queue them for the links of their destinations.

        The switch learns from the source address of each frame which link leads to this address.
        """
        for _ in range(MAX_BATCH):
            try:
                frame = link.recv(MAX_FRAME)
            except OSError:  # no more frames, or the device is down or removed
                return
            target, source = frame[VNET_HEADER : VNET_HEADER + 6], frame[VNET_HEADER + 6 : VNET_HEADER + 12]
            self.link_of_address[source] = link
            outgoing = self.link_of_address.get(target)
            is_multicast = target[0] & 1
            links = [outgoing] if outgoing and not is_multicast else [other for other in self.links if other != link]
            self.delayed.append((time.monotonic() + self.delay_s, links, frame))

    def send_due_frames(self) -> None:
        """Send the frames whose delay is over, without blocking; frames stay queued while a link's buffer is full."""
        now = time.monotonic()
        while self.delayed and self.delayed[0][0] <= now:
            _, links, frame = self.delayed.popleft()
            for link in links:
                self.ready[link].append(frame)
        for link, frames in self.ready.items():
            while frames:
                try:
                    link.send(frames[0])
                except BlockingIOError:
                    break
                except OSError:  # the device is down: the frame is lost, as with an unplugged cable
                    pass
                frames.popleft()


if __name__ == "__main__":
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")  # else the kernel wakes this process 50 us late
    DelaySwitch(sys.argv[2:], float(sys.argv[1])).run()
