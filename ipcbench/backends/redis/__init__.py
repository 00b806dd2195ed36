"""A transport through a Redis or Valkey server, which the channel starts and ends."""
