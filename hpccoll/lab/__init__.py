"""A throw-away SLURM cluster on this machine: nodes with their own names, addresses, processes, /tmp and links.

`cluster.Lab` is the front door. A lab is one process, the keeper, and what it started; when it ends, all of it does.
"""
