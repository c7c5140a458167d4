"""Tests that start a process or open a socket, and need no server."""
