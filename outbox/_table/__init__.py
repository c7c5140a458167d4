"""Publish messages in table mode: rows of the message table, inserted in the local transaction."""
