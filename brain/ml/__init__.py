"""Training: the job, the model, the loop."""
