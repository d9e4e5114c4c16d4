"""Golden stores: small files with a store of each schema number, full of runs in every state."""
