"""A client of fedzero-device/1, without PyTorch: see docs/device-protocol.md of fedzero."""

__version__ = "0.1.0"
