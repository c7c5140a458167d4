"""How fast the relay is: draining what waits, with a history, and from COMMIT to the reader."""
