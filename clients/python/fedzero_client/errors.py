"""What goes wrong, in a sentence."""


class ClientError(Exception):
    """Nothing can go on: bad data, a bad ticket, a gateway that is not who it should be."""


class Broken(Exception):
    """The connection broke, or the gateway said something odd: try again."""
