"""The loops of `Inbox.run()` and `Inbox.run_async()`."""
