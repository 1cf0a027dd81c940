"""What kernels, phases and runs cost: estimators, the roll-up over decode steps, memory."""
