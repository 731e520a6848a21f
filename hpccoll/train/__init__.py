"""`hpccoll train`: model, data, training loop, checkpoints and records; start with trainer.py."""
