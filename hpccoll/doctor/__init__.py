"""What is here, what is wrong with it, and what to do: the findings of `hpccoll doctor`.

Each file looks at one area and returns findings. Whatever may crash or hang (a driver, an MPI library, a tool of the
site) runs in a process of its own with a time limit; how it ended is the evidence.
"""
