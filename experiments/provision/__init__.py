"""Provisioning: certificate authority, server certificates, enrolment of silos, start-up kits.

Who checks what: TLS shows the coordinator's server to a silo (certificate of the federation's authority); Flower shows
a SuperNode to the SuperLink (its registered ECDSA key); silos show themselves to each other (Ed25519 identities pinned
in ``roster.toml``). Flower's SuperNode cannot present a client certificate, so none is made: what a silo sends is a
request signed with its own keys, and what it gets back is a kit signed by the authority.
"""
