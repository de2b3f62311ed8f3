"""The messages between server and clients, a client's half of the protocol, and the contract of an engine's clients."""
