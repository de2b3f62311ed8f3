"""A run recomputed from its ledger, after docs/ledger.md and docs/directions.md; nothing of fedzero is imported."""
