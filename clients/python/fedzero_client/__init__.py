"""A client of fedzero-device/1, with NumPy alone: see docs/device-protocol.md of fedzero."""

__version__ = "0.1.0"
