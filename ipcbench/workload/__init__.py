"""What is sent: payloads, codecs, and the message format around them."""
