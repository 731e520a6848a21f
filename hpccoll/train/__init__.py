"""Training over the collectives: model, data, loop, checkpoint, and what a step cost."""
