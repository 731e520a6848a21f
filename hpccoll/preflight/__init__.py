"""Which links and nodes of a job are slow or broken: every pair of nodes measured, and every node alone."""
