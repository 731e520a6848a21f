"""`hpccoll train`: model, data, training loop, gradient check, checkpoints and records.

Start reading at trainer.py, the training steps of one rank; training_run.py runs all steps and writes checkpoints. The
package re-exports nothing, because most of its modules import torch.
"""
