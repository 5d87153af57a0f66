"""The model cache as a process: one per device, which outlives the runs that use it."""
