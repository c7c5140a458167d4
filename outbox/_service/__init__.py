"""What the services share: settings, logs, metrics, health, signals, exit codes."""
