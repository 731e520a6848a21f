"""What happens in a collective: plans, their proof and their serial execution; no MPI, torch, clock or I/O."""
