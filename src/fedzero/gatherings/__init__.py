"""Gatherings that come with fedzero, one idea a file; see `links.gathering` for their contract.

committee   the secure sum: the server learns Σ_i v_i and no v_i
member      what a host of it does; `state`: what the host keeps; `messages`: what travels
roster      whose keys are whose, and who is in the committee
sealing, shamir, field   keys and sealed boxes; polynomials; numbers modulo a prime
"""
