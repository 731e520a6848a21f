"""A switch that delays: carries frames between the ends of links, each some time after it came. A program of its own.

The kernel's own delay (netem) is a module that many machines lack, so frames pass through here: raw packet sockets on
the control node's ends of the links. Large frames stay whole, as TCP hands them down, with a header that tells the
kernel where to cut them (the same header as for virtual machines), so 400 Mbit/s are a thousand frames a second. Rates
are not this program's business: token buckets at the ends keep them.
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
VNET_HEADER = 10  # bytes before each frame
LONGEST_FRAME = 1 << 17
BUFFER_BYTES = 32 << 20  # whole windows of several senders: a drop would halve TCP's rate
MOST_AT_ONCE = 64  # frames from one link before the others have their turn


def opened(end: str) -> socket.socket:
    """Return a socket that carries the frames of one end of a link."""
    link = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    for force, plain in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            link.setsockopt(socket.SOL_SOCKET, force, BUFFER_BYTES)
        except PermissionError:  # only the first user namespace may exceed the limit
            link.setsockopt(socket.SOL_SOCKET, plain, BUFFER_BYTES)
    link.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    link.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)  # what this program sends is not to come back
    link.setblocking(False)
    link.bind((end, ETH_P_ALL))
    return link


class DelaySwitch:
    """The ends of all links, and the frames on their way.

    Args:
        ends: names of the devices.
        delay_s: what each frame takes.
    """

    def __init__(self, ends: list[str], delay_s: float) -> None:
        self.delay_s = delay_s
        self.links = [opened(end) for end in ends]
        self.behind: dict[bytes, socket.socket] = {}  # which link a hardware address was seen on
        self.delayed: deque[tuple[float, list[socket.socket], bytes]] = deque()  # all wait equally long: in order
        self.ready: dict[socket.socket, deque[bytes]] = {link: deque() for link in self.links}

    def run(self) -> None:
        """Carry frames until killed."""
        while True:
            rest = max(0.0, self.delayed[0][0] - time.monotonic()) if self.delayed else None
            full = [link for link, frames in self.ready.items() if frames]
            readable, _, _ = select.select(self.links, full, [], rest)
            for link in readable:
                self.take(link)
            self.pass_on()

    def take(self, link: socket.socket) -> None:
        """Read what has come, and see where it goes."""
        for _ in range(MOST_AT_ONCE):
            try:
                frame = link.recv(LONGEST_FRAME)
            except OSError:  # nothing more, or its device is gone or down
                return
            target, source = frame[VNET_HEADER : VNET_HEADER + 6], frame[VNET_HEADER + 6 : VNET_HEADER + 12]
            self.behind[source] = link
            known = self.behind.get(target)
            to = (
                [known]
                if known is not None and not target[0] & 1
                else [each for each in self.links if each is not link]
            )
            self.delayed.append((time.monotonic() + self.delay_s, to, frame))

    def pass_on(self) -> None:
        """Send what is due; a link that is full keeps its frames in order until it has room."""
        now = time.monotonic()
        while self.delayed and self.delayed[0][0] <= now:
            _, to, frame = self.delayed.popleft()
            for link in to:
                self.ready[link].append(frame)
        for link, frames in self.ready.items():
            while frames:
                try:
                    link.send(frames[0])
                except BlockingIOError:
                    break
                except OSError:  # its device is down: the frame is lost, as in a cable that was pulled out
                    pass
                frames.popleft()


if __name__ == "__main__":
    Path("/proc/self/timerslack_ns").write_text("1", encoding="ascii")  # the kernel wakes sleepers 50 us late otherwise
    DelaySwitch(sys.argv[2:], float(sys.argv[1])).run()
