"""What server and clients say to each other, a client's half of it, and the engine for clients in this process."""
