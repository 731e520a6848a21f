"""Plans of loads, stores and fences on the host memory of one node.

Start reading with executable.py; tiling.py turns instructions into calls on memory.
"""
