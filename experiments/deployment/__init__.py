"""Conduct runs over real silos: registered nodes, a SuperLink with TLS, restarts of whatever dies."""
