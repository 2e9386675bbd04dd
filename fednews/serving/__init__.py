"""Private online serving: what the device does, what the server does, and the HTTP between them."""
