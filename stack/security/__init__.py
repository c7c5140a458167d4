"""What the servers of a secured stack have besides: certificates, tokens that Kafka accepts, logins and ACLs."""
