"""Measures round trips and bandwidth between two nodes: `traffic.py serve` and `traffic.py send HOST MIB`."""

from __future__ import annotations

import json
import socket
import sys
import time

PORT, PINGS, WARM_BYTES = 5999, 100, 2 << 20


def serve() -> dict[str, float]:
    """Serve one client; return the received bytes per second after the first WARM_BYTES."""
    with socket.create_server(("", PORT)) as listener, listener.accept()[0] as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            peer.sendall(peer.recv(1))
        got, start, before = 0, 0.0, 0
        while data := peer.recv(1 << 20):
            got += len(data)
            if not start and got > WARM_BYTES:
                start, before = time.monotonic(), got
        return {"bytes_per_s": (got - before) / (time.monotonic() - start) if start else 0.0}


def send(host: str, mib: int) -> dict[str, float]:
    """Measure round trips to a server, then send it `mib` MiB; return the shortest round trip."""
    end = time.monotonic() + 30
    peer, trips = None, []
    while peer is None:
        try:
            peer = socket.create_connection((host, PORT), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(PINGS):
            start = time.monotonic()
            peer.sendall(b"x")
            peer.recv(1)
            trips.append(time.monotonic() - start)
        for _ in range(mib):
            peer.sendall(b"x" * (1 << 20))
    return {"round_trip_s": min(trips)}


if __name__ == "__main__":
    print(json.dumps(serve() if sys.argv[1] == "serve" else send(sys.argv[2], int(sys.argv[3]))))
