"""`python -m stack`: the same as `outbox stack`."""

from stack.cli import app

app(prog_name="python -m stack")
