"""`python -m outbox`: the command `outbox`."""

from outbox._cli.main import main

main()
