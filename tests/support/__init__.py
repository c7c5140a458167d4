"""What tests share: sites, servers, small applications, histories of messages."""
