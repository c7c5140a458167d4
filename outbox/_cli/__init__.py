"""The library's own subcommands of `outbox`; they need the extras, the library does not need them."""
