"""`hpccoll train`: model, data, training loop, gradient check, checkpoints and records.

Start with trainer.py: the training steps of one rank; training_run.py runs them with checkpoints and output. The
package re-exports nothing, because most of its modules import torch.
"""
