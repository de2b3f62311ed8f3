"""NVIDIA FLARE as the engine: machines of their own, mutual TLS, long-lived sites.

    supervisor ── unix socket ── server's job ══ mutual TLS ══ site's job ── fedzero.deploy.site.site
    (ledger)     (bridge.py)     (relay.py)                    (executor.py)

A FLARE job is an epoch and no more: it ends when a site's job process crashes, and no site joins it late. The
supervisor owns the ledger, begins the next epoch when one is over, and nothing is lost but the round that was going on.
The server's job only relays; no code travels with a job, sites run the package they have installed.

`nvflare` is imported in this package alone: project.py (provisioning), server.py (its server, patched), relay.py and
executor.py (the two ends of a job), and epochs.py (the supervisor's session).
"""
