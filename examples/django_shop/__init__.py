"""A shop on Django that publishes its orders with `outbox.django`."""
