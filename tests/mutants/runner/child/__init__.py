"""A folder for PYTHONPATH, which gives a mutant to the processes that a test starts."""
