"""Collectives and messages over MPI: plans of messages, the MPI library's own collectives, send and receive.

Start reading with executable.py for plans and with mpi_collectives.py for the library's collectives.
"""
