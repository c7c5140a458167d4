"""What the producer library costs an application."""
