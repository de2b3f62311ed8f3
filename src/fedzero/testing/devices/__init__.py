"""Conformance of devices: plays the gateway of `fedzero-device/1` against anybody's client (`fedzero conformance`).

wrong         what a scenario raises
model, turn   what a device computes, in NumPy, and the same with a mistake
settings      runs: recipe, rows, plan, model
gateway       the gateway of fedzero, with records of frames and with deviations
subject       the client: a command, or somebody's hands
judging       whether an answer is right, and which mistake explains it
trial         one run of a client
scenarios     what is played
running       one scenario after the other
"""
