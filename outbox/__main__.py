"""`python -m outbox`: the command `outbox`."""

from outbox.cli import main

main()
