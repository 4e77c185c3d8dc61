"""Public files fetched from their publishers: Stooq, FRED and Ken French's data library."""
