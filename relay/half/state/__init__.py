"""What is known of one half partition."""
