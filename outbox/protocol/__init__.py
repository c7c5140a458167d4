"""The protocol, pure: names, record formats, states, checkpoints and the partitioner.

Nothing here does I/O, reads a clock or draws a random number, and nothing here imports the rest of the project.
`docs/protocol.md` specifies every format; `docs/vectors.json` holds the test vectors.
"""
