"""The processes of a job and of commands, without the MPI library.

launcher.py finds out which launcher has started this process, launched_rank.py reads its rank, and pmi_relay.py repairs
messages between MPICH and SLURM. command.py runs commands with a time limit, and start_limit.py ends a process whose
MPI_Init takes too long. python_program.py checks programs before they run. joint_failure.py lets all ranks of a job
fail together. free_memory.py tells how much memory a process may allocate.
"""
