"""Plans of loads, stores and fences on the host memory of one node.

Start reading with executable.py. staged.py makes the calls that copy through slots (shared memory of each rank), and
access.py finds out whether ranks can access each other's buffers in place.
"""
