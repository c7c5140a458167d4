"""The product in containers, proved where no image registry is reachable: `python -m tests.containers`."""
