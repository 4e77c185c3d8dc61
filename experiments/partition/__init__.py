"""How unlike the silos of a prepared federation are: table and picture."""
