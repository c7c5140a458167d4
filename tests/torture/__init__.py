"""Torture: everything is killed, paused and restarted at random, then reconciled. `make torture MINUTES=10`."""
