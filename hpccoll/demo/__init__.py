"""The classic examples of collective communication, run for real: what each rank holds before and after."""
