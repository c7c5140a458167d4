"""What `watch` counts with: records as events, what is open of them, figures, alerts. Pure."""
