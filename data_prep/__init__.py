"""Price files to a clean panel, 52 features and memory-mapped samples. Imports nothing of ours."""
