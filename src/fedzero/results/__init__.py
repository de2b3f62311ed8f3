"""What a ledger says to people."""
